// Build the page: bar, tabs, panels; say what happens.
"use strict";
(() => {
  const { el, store } = Page;
  const { page } = Page.data;
  const byId = (id) => document.getElementById(id);
  const TITLES = { neighbors: "Neighbors", selection: "Selection", clusters: "Clusters", copies: "Copies", labels: "Labels" };
  let timer = null;

  // A line at the bottom; it goes away after some seconds.
  Page.say = (text, { stay = false, problem = false } = {}) => {
    byId("status").textContent = text;
    byId("status").classList.toggle("problem", problem);
    clearTimeout(timer);
    if (text && !stay) timer = setTimeout(() => { byId("status").textContent = ""; }, problem ? 12000 : 5000);
  };
  Page.fail = (error) => Page.say(error.message, { problem: true });

  Page.redraw = (id) => { if (store.state.panel === id) Page.sections.find((one) => one.id === id).draw(byId("panel")); };

  function choices() {
    byId("choices").replaceChildren(...page.choices.map((choice) => el("button", { type: "button", role: "radio", "aria-checked": String(choice === store.state.choice), "data-choice": choice, tabindex: choice === store.state.choice ? "0" : "-1",
      title: choice === "fused" ? `all of ${page.modalities.join(", ")} (m)` : `${choice} alone (m)`, onclick: () => store.choose(choice) }, choice)));
  }

  function tabs() {
    const numbers = { selection: store.state.selection.size, labels: store.state.labels.size };
    byId("tabs").replaceChildren(...Page.keyboard.PANELS.map((panel) => el("button", { type: "button", role: "tab", id: `tab-${panel}`, "aria-selected": String(panel === store.state.panel), "aria-controls": "panel",
      onclick: () => store.show(panel) }, TITLES[panel], numbers[panel] ? el("span", { class: "count" }, Page.format.count(numbers[panel])) : "")));
    byId("panel").setAttribute("aria-labelledby", `tab-${store.state.panel}`);
  }

  function draw() {
    tabs();
    if (!TITLES[store.state.panel]) store.state.panel = "neighbors";
    byId("panel").scrollTop = 0;
    byId("panel").dataset.panel = store.state.panel;
    Page.redraw(store.state.panel);
  }

  async function readSaved() {
    const saved = await Page.api.saved();
    for (const [id, label] of Object.entries(saved.labels)) if (store.numbers.has(id)) store.state.labels.set(store.numbers.get(id), label);
    for (const [first, second, decision] of saved.decisions) store.state.decisions.set(`${first}\t${second}`, decision);
    store.emit("labels");
  }

  byId("title").textContent = `${Page.format.count(page.num_videos)} videos`;
  byId("title").title = `${page.software}, ${page.written}`;
  document.title = `${Page.format.count(page.num_videos)} videos · CoViD-CMSF`;
  if (page.notes.length) byId("notes").replaceChildren(el("aside", { class: "notes" }, page.notes.join("; ")));
  byId("theme").addEventListener("click", Page.theme.toggle);
  Page.motion.start();
  Page.searchBox.start();
  Page.keyboard.start();
  store.on("choice", choices);
  store.on("panel", draw);
  store.on("selection", () => { tabs(); Page.redraw("selection"); });
  store.on("labels", () => { tabs(); Page.redraw("labels"); });
  choices();
  draw();
  Page.map.start().catch(Page.fail);
  readSaved().catch(Page.fail);
  document.documentElement.dataset.ready = "yes";
  performance.mark("page-ready");
})();
