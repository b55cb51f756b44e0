// Labels by hand, and what a linear probe suggests for the rest.
"use strict";
Page.labels = (() => {
  const { el, store } = Page;
  const { ids } = Page.data.videos;

  async function set(chosen, label) {
    const name = label.trim().slice(0, 200);
    for (const video of chosen) name ? store.state.labels.set(video, name) : store.state.labels.delete(video);
    store.emit("labels");
    const changes = Object.fromEntries(chosen.map((video) => [ids[video], name]));
    const all = Object.fromEntries([...store.state.labels].map(([video, one]) => [ids[video], one]));
    const place = await Page.api.saveLabels(changes, all);
    Page.say(place ? `${Page.format.count(chosen.length)} ${name ? "labeled" : "unlabeled"}; saved in ${place}` : "not saved: this browser keeps nothing; save the CSV file");
  }

  const names = () => [...new Set(store.state.labels.values())].sort();

  // Label the selection.
  function form() {
    const input = el("input", { id: "label", type: "text", list: "label-names", maxlength: "200", placeholder: "a label", "aria-label": "Label of the selection" });
    const list = el("datalist", { id: "label-names" }, names().map((name) => el("option", { value: name })));
    const apply = () => { if (input.value.trim()) set([...store.state.selection], input.value).then(() => store.select([])).catch(Page.fail); };
    input.addEventListener("keydown", (event) => { if (event.key === "Enter") { event.preventDefault(); apply(); } });
    return el("div", { class: "form" }, input, list, Page.button("Label the selection", apply, { class: "primary" }),
      Page.button("Remove labels", () => set([...store.state.selection], "").catch(Page.fail)));
  }

  return { set, names, form };
})();
Page.section("labels", (body) => {
  const { el, store, cards } = Page;
  const { page, videos } = Page.data;
  const PER_LABEL = 12, UNSURE = 8;
  const sure = (store.state.sure ||= 0.9);

  function counts() {
    return el("div", { class: "chips" }, Page.labels.names().map((name) => {
      const own = [...store.state.labels].filter(([, one]) => one === name).map(([video]) => video);
      return Page.button(`${name} ${Page.format.count(own.length)}`, () => store.select(own), { class: "chip", title: `Select the videos labeled ${name}` });
    }));
  }

  function suggestion(row, single) {
    const accept = Page.button("✓", () => Page.labels.set([row.video], row.label).then(again).catch(Page.fail), { class: "accept", title: `Label it ${row.label} (Enter)`, "aria-label": `Label ${videos.ids[row.video]} as ${row.label}` });
    const value = single ? row.value.toFixed(2) : `${Math.round(100 * row.value)}%`;
    return cards.card(row.video, { kinds: page.kinds.slice(0, 1), head: [el("span", { class: "score" }, value), accept], press: () => store.ask({ video: row.video }) });
  }

  const again = () => Page.redraw("labels");

  async function suggestions(box) {
    const { names, rows, few, right, checked } = await Page.probe.suggest(store.state.labels);
    const single = names.length === 1;
    const groups = names.map((name) => {
      const own = rows.filter((row) => row.label === name).sort((a, b) => b.value - a.value || a.video - b.video);
      const certain = own.filter((row) => !single && !few && row.value >= sure);
      return el("section", { class: "group", "data-label": name }, el("header", {}, el("h3", {}, name), el("span", { class: "quiet" }, single ? "the most similar, with their similarity" : `${Page.format.count(own.length)} suggested`),
        certain.length ? Page.button(`Accept ${Page.format.count(certain.length)} above ${Math.round(100 * sure)}%`, () => Page.labels.set(certain.map((row) => row.video), name).then(again).catch(Page.fail)) : "",
        Page.button("Select all", () => store.select(own.map((row) => row.video)), { "aria-label": `Select all suggested as ${name}` })),
        el("div", { class: "cards small" }, own.slice(0, PER_LABEL).map((row) => suggestion(row, single))));
    });
    const unsure = single ? [] : [...rows].sort((a, b) => a.margin - b.margin || a.video - b.video).slice(0, UNSURE);
    box.replaceChildren(
      el("p", { id: "checked", class: "quiet" }, single ? "With a second label a linear probe learns to tell them apart."
        : few ? `Few labels: how far these percentages are right is known from ${Page.probe.FEW} labels on, with ${Page.probe.FEW_PER_LABEL} of each kind.`
          : `Each label was left out once and suggested by the others: ${Page.format.count(right)} of ${Page.format.count(checked)} rightly. The percentages are scaled to agree with that; they hold for videos of these kinds, and say nothing about others.`),
      ...(unsure.length ? [el("section", { class: "group", "data-label": "" }, el("header", {}, el("h3", {}, "Least sure"), el("span", { class: "quiet" }, "label these next: they teach the probe most")),
        el("div", { class: "cards small" }, unsure.map((row) => suggestion(row, false))))] : []), ...groups);
    body.dataset.shown = `labels ${store.state.labels.size}`;
  }

  delete body.dataset.shown;
  if (!store.state.labels.size) {
    body.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "No labels yet"),
      el("p", { class: "quiet" }, "Select some videos and label them (key l): a few of each kind are enough. A linear probe then suggests labels for all others.")));
    return;
  }
  const box = el("div", {}, el("p", { class: "quiet" }, "learning …"));
  const rows = () => [...store.state.labels].sort((a, b) => a[0] - b[0]).map(([video, label]) => [videos.ids[video], label]);
  body.replaceChildren(
    el("header", { class: "panel-head" }, el("h2", {}, `${Page.format.count(store.state.labels.size)} labeled`), counts(), el("div", { class: "actions" },
      Page.button("Save labels as CSV", () => Page.csv.save("labels.csv", ["video", "label"], rows())),
      Page.button("Color the map by label", () => Page.map.colorBy("label")))), box);
  suggestions(box).catch(Page.fail);
});
