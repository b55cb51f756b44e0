// Build the page, and redraw it when data or selections change; scroll position and selections are kept.
"use strict";
(() => {
  const { el, state, sections } = Page;
  state.plan = 0;
  const byId = (id) => document.getElementById(id);
  const bodyOf = (id) => byId(id).querySelector(".body");

  Page.redraw = (...ids) => {
    for (const { id, draw } of sections) if (!ids.length || ids.includes(id)) draw(bodyOf(id));
  };

  // Selection of a plan for all sections.
  function planChoice() {
    const { plans } = Page.data.report;
    if (plans.length < 2) return "";
    return Page.choice("Plan", plans.map((plan, number) => [number, plan.name]), state.plan, (value) => {
      state.plan = Number(value);
      state.pair = null;
      drawAll();
    });
  }

  function frame() {
    const { plans, software, written, notes } = Page.data.report;
    state.plan = Math.min(state.plan, plans.length - 1);
    const names = plans.map((plan) => plan.name).join(", ");
    document.title = `${names} · CoViD-CMSF report`;
    byId("title").textContent = names;
    byId("subtitle").textContent = `CoViD-CMSF report, written ${written}`;
    byId("foot").textContent = `Written by ${software}. All of its data is in this folder.`;
    byId("notes").replaceChildren(notes.length ? el("aside", { class: "notes" }, el("b", {}, notes.length === 1 ? "A note" : `${notes.length} notes`), el("ul", {}, notes.map((note) => el("li", {}, note)))) : "");
    const links = sections.map(({ id }) => el("a", { href: `#${id}`, "data-section": id }, byId(id).querySelector("h2").textContent));
    byId("navigation").replaceChildren(el("div", { class: "links" }, links), planChoice());
    mark();
  }

  // Mark the current section in the navigation.
  function mark() {
    let here = sections[0].id;
    for (const { id } of sections) if (byId(id).getBoundingClientRect().top < 140) here = id;
    for (const link of document.querySelectorAll("nav a")) {
      if (link.dataset.section !== here) link.removeAttribute("aria-current");
      else if (!link.hasAttribute("aria-current")) {
        link.setAttribute("aria-current", "true");
        link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - 48; // on a phone they do not all fit
      }
    }
  }

  function drawAll() {
    frame();
    Page.redraw();
    document.documentElement.dataset.ready = "yes";
    performance.mark("report-ready");
  }
  Page.drawAll = drawAll;

  const order = ["overview", "comparison", "curves", "neighbors", "map", "errors", "data", "provenance"];
  sections.sort((a, b) => order.indexOf(a.id) - order.indexOf(b.id));
  byId("theme").addEventListener("click", Page.theme.toggle);
  Page.motion.start();
  window.addEventListener("scroll", mark, { passive: true });
  drawAll();
  if (location.hash && byId(location.hash.slice(1))) byId(location.hash.slice(1)).scrollIntoView();
  Page.live.start();
})();
