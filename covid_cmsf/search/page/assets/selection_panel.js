// The selected videos: save them as CSV, or label them.
"use strict";
Page.section("selection", (body) => {
  const { el, store, cards } = Page;
  const chosen = [...store.state.selection].sort((a, b) => a - b);
  if (!chosen.length) {
    body.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "Nothing is selected"),
      el("p", { class: "quiet" }, "Draw around points of the map with Shift and drag, tick results, or select a cluster.")));
    return;
  }
  body.replaceChildren(
    el("header", { class: "panel-head" }, el("h2", {}, `${Page.format.count(chosen.length)} selected`), el("div", { class: "actions" },
      Page.button("Save as CSV", () => Page.csv.saveVideos("selection.csv", chosen), { id: "export" }), Page.button("Clear", () => store.select([])))),
    Page.labels.form(), ...cards.list(chosen, (video) => cards.card(video)));
});
