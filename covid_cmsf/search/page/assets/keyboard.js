// Shortcuts, and the dialog that lists them.
"use strict";
Page.keyboard = (() => {
  const { el, store } = Page;
  const PANELS = ["neighbors", "selection", "clusters", "copies", "labels"];
  const SHORTCUTS = [
    ["/", "search by name"], ["1 … 5", "neighbors, selection, clusters, copies, labels"], ["m", "search by the next modality"],
    ["← → ↑ ↓", "go through results; on the map: move"], ["Enter", "search for the video in focus"], ["s", "compare a part of the query: arrows move its start, then Tab its end"], ["x", "select the video in focus"],
    ["g", "go to the map"], ["+ − 0", "on the map: zoom in, out, show all"], ["a", "on the map: select all that is in view"], ["Shift drag", "on the map: lasso; with Ctrl it adds"],
    ["l", "label the selection"], ["e", "save the selection as CSV"], ["y n", "copies: same, different"], ["Esc", "clear the selection"],
    ["p", "pause or play the clips"], ["t", "light or dark"], ["?", "this list"],
  ];
  const dialog = document.getElementById("shortcuts");

  function help() {
    dialog.replaceChildren(el("h2", { id: "shortcuts-title" }, "Keyboard shortcuts"),
      el("dl", {}, SHORTCUTS.map(([keys, what]) => el("div", {}, el("dt", {}, el("kbd", {}, keys)), el("dd", {}, what)))),
      Page.button("Close", () => dialog.close(), { class: "primary" }));
    dialog.showModal();
  }

  // The next card in a direction; up and down go to the nearest in another row.
  function step(from, key) {
    const all = [...document.querySelectorAll("#panel [data-video][tabindex], #panel .pair")];
    const at = all.indexOf(from);
    if (at < 0) return all[0];
    if (key === "ArrowRight") return all[at + 1];
    if (key === "ArrowLeft") return all[at - 1];
    const here = from.getBoundingClientRect();
    const down = key === "ArrowDown";
    const rows = all.filter((one) => { const box = one.getBoundingClientRect(); return down ? box.top >= here.bottom - 4 : box.bottom <= here.top + 4; });
    const distance = (one) => { const box = one.getBoundingClientRect(); return Math.abs(box.left - here.left) + 3 * Math.abs(box.top - here.top); };
    return rows.sort((a, b) => distance(a) - distance(b))[0];
  }

  function label() {
    if (!store.state.selection.size) { Page.say("select videos first"); return; }
    store.show("selection");
    document.getElementById("label")?.focus();
  }

  function pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open) return;
    if (event.target.matches("input[type=range]") && /^(Arrow|Home|End|Page)/.test(event.key)) return; // they move the slider
    const inField = event.target.matches("input:not([type=checkbox], [type=range]), select, textarea");
    if (inField) { if (event.key === "Escape") event.target.blur(); return; }
    const focused = event.target.closest?.("#panel [data-video][tabindex], #panel .pair");
    const { choices } = Page.data.page;
    const keys = {
      "/": () => document.getElementById("name").focus(), "?": help, t: Page.theme.toggle, p: () => document.getElementById("motion").click(),
      m: () => store.choose(choices[(choices.indexOf(store.state.choice) + 1) % choices.length]), g: () => { document.getElementById("canvas").focus(); Page.map.view.keyed = true; Page.map.view.draw(); },
      s: () => { const slider = document.getElementById("part-start"); if (slider) slider.focus(); else Page.say(Page.data.page.live ? "search for a video first" : "parts can be compared with the server: covid-cmsf search serve"); },
      l: label, e: () => { if (store.state.selection.size) Page.csv.saveVideos("selection.csv", [...store.state.selection].sort((a, b) => a - b)); else Page.say("select videos first"); },
      Escape: () => store.select([]),
    };
    PANELS.forEach((panel, i) => { keys[i + 1] = () => { store.show(panel); document.getElementById("panel").focus({ preventScroll: true }); }; });
    if (focused && event.target === focused && focused.dataset.video !== undefined) {
      keys.Enter = focused.activate;
      keys.x = keys[" "] = () => store.toggle(Number(focused.dataset.video));
    }
    if (event.key.startsWith("Arrow") && (focused || event.target.id === "panel" || event.target === document.body)) {
      const next = step(focused, event.key);
      if (!next) return;
      next.focus();
      next.scrollIntoView({ block: "nearest" });
    } else if (keys[event.key]) keys[event.key]();
    else return;
    event.preventDefault();
  }

  function start() {
    document.addEventListener("keydown", pressed);
    document.getElementById("help").addEventListener("click", help);
  }

  return { start, PANELS };
})();
