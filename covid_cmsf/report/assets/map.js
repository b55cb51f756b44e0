// Map: test features of two stages in 2D, side by side; hovering displays the clip.
"use strict";
Page.section("map", (body) => {
  const { el, format, charts, state, filters, metrics, clips } = Page;
  state.map ||= { method: "pca", className: "", color: "class" };
  const own = state.map;
  const COLORS = ["#4477aa", "#ee6677", "#228833", "#aa3377", "#cc8800", "#33a6c9", "#888888"];
  const SYMBOLS = ["circle", "square", "diamond", "cross", "triangle-up", "x", "star"];
  const MANY = 1500; // from this number of points on, draw with WebGL

  const card = document.getElementById("hover-card") || document.body.appendChild(el("div", { id: "hover-card", class: "card", hidden: true }));
  const hasCard = (() => { try { return Boolean(document.createElement("canvas").getContext("webgl")); } catch { return false; } })();

  function show(gallery, stage, event) {
    const query = event.points[0]?.customdata;
    if (query === undefined) return;
    const answer = stage.prediction[query];
    card.replaceChildren(...clips.pictures(gallery.pictures?.[query], gallery.ids[query], "both"),
      el("p", {}, gallery.labeled ? [el("b", {}, gallery.classes[gallery.labels[query]] || "?"), el("br")] : "", el("span", { class: "quiet" }, format.short(gallery.ids[query], 40)), el("br"),
        !gallery.labeled ? "" : metrics.hit(stage, query) ? "✓ nearest is right" : `✗ nearest is ${gallery.classes[answer] || "?"}`));
    card.hidden = false;
    const [x, y] = [event.event.clientX, event.event.clientY];
    card.style.left = `${Math.max(4, Math.min(window.innerWidth - card.offsetWidth - 8, x + 16))}px`;
    card.style.top = `${Math.max(4, Math.min(window.innerHeight - card.offsetHeight - 8, y + 16))}px`;
  }

  filters.withGallery(body, ["map"], (plan, gallery, maps) => {
    filters.stagesOf(gallery);
    const pair = filters.pair(plan, gallery);
    const again = () => Page.redraw("map");
    const change = (name) => (value) => { own[name] = value; again(); };
    if (own.method === "umap" && !maps.some((one) => one.umap_x)) own.method = "pca";

    // One trace per class, or one for correct and one for wrong.
    function traces(number) {
      const stage = gallery.stages[number], points = maps[number];
      const [xs, ys] = [points[`${own.method}_x`], points[`${own.method}_y`]];
      const groups = new Map();
      for (let query = 0; query < gallery.num_queries; query++) {
        if (xs[query] === null) continue;
        const key = !gallery.labeled ? 0 : own.color === "class" ? gallery.labels[query] : metrics.hit(stage, query) ? "right" : "wrong";
        if (!groups.has(key)) groups.set(key, []);
        groups.get(key).push(query);
      }
      const type = gallery.num_queries > MANY && hasCard ? "scattergl" : "scatter";
      return [...groups.entries()].sort((a, b) => (a[0] > b[0] ? 1 : -1)).map(([key, queries]) => {
        const faded = own.className !== "" && own.color === "class" && key !== Number(own.className);
        const kept = own.className !== "" && own.color !== "class" ? queries.filter((query) => gallery.labels[query] === Number(own.className)) : queries;
        const look = own.color === "class" ? { color: faded ? charts.color("faint") : COLORS[key % COLORS.length], symbol: SYMBOLS[Math.floor(key / COLORS.length) % SYMBOLS.length] }
          : { color: key === "right" ? charts.color("right") : charts.color("wrong"), symbol: key === "right" ? "circle" : "x" };
        return { type, mode: "markers", name: !gallery.labeled ? "videos" : format.literal(own.color === "class" ? gallery.classes[key] || key : key), x: kept.map((query) => xs[query]), y: kept.map((query) => ys[query]),
          customdata: kept, hoverinfo: "none", marker: { size: gallery.num_queries > MANY ? 4 : 7, opacity: faded ? 0.35 : 0.85, ...look } };
      });
    }

    function panel(number, side) {
      const stage = gallery.stages[number];
      const container = charts.container(`map-${side}`, 420, `Map of ${stage.name}`);
      const shares = maps[number].explained_variance.map((fraction) => `${Math.round(100 * fraction)}%`).join(" and ");
      const hidden = { showgrid: false, showline: false, showticklabels: false, zeroline: false, ticks: "" };
      Page.whenNear(container, () => charts.draw(container, () => ({ traces: traces(number), hover: (event) => show(gallery, stage, event), leave: () => { card.hidden = true; },
        layout: { hovermode: "closest", uirevision: `${stage.name} ${own.method}`, dragmode: "pan", showlegend: gallery.labeled && (gallery.classes.length <= 20 || own.color !== "class"), legend: { orientation: "h", y: -0.02, font: { size: 11 } },
          xaxis: hidden, yaxis: { ...hidden, scaleanchor: "x" } } })));
      return el("article", { class: "card" }, el("header", {}, el("h3", {}, Page.term(stage.name, "map")), stage.r1 === null ? "" : el("span", { class: "quiet" }, `R@1 ${format.number(stage.r1)}`)),
        el("p", { class: "quiet" }, own.method === "pca" ? `Two principal components: ${shares} of the variance.` : "UMAP with cosine distance: small distances are meaningful, large ones are not."), container);
    }

    const methods = [["pca", "PCA"], ...(maps.some((one) => one.umap_x) ? [["umap", "UMAP"]] : [])];
    body.replaceChildren(
      el("div", { class: "controls" },
        filters.modalityChoice(gallery, () => Page.redraw("neighbors", "map", "errors")), filters.pairChoice(plan, gallery, () => Page.redraw("neighbors", "map", "errors")),
        Page.choice("Method", methods, own.method, change("method")),
        gallery.labeled ? [Page.choice("Color", [["class", "by class"], ["right", "right or wrong"]], own.color, change("color")),
          Page.choice("Class", [["", "all"], ...gallery.classes.map((name, label) => [label, name || String(label)])], own.className, change("className"))] : ""),
      methods.length < 2 ? el("p", { class: "quiet" }, filters.seedNote(plan), "For UMAP, install it: ", el("code", {}, "pip install umap-learn")) : el("p", { class: "quiet" }, filters.seedNote(plan)),
      el("div", { class: "grid" }, panel(pair[0], "before"), pair[0] === pair[1] ? "" : panel(pair[1], "after")));
  });
});
