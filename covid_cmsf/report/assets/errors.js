// Errors: confusion matrix, and the classes and videos that improved or got worse.
"use strict";
Page.section("errors", (body) => {
  const { el, format, charts, state, filters, metrics, clips } = Page;
  state.errors ||= { matrix: "after", by: "neighbor" };
  const own = state.errors;

  filters.withGallery(body, [], (plan, gallery) => {
    if (!gallery.labeled) return body.replaceChildren(Page.missing("Errors need labels, and these videos have none. With a table of their classes, as columns video_id and label: ", plan.label));
    filters.stagesOf(gallery);
    const pair = filters.pair(plan, gallery);
    const [before, after] = pair.map((number) => gallery.stages[number]);
    const chance = plan.rows.find((row) => (row.chance ?? null) !== null)?.chance ?? null;
    const present = [...new Set(gallery.labels.slice(0, gallery.num_queries))].sort((a, b) => a - b);
    const names = present.map((label) => format.literal(gallery.classes[label] || label));
    const hasLinear = metrics.linearConfusion(gallery, before) !== null && metrics.linearConfusion(gallery, after) !== null;
    const linear = hasLinear && own.by === "linear";
    const what = linear ? { matrix: "Confusion of the linear classifier", axis: "class of the linear classifier", rate: "Linear accuracy" } : { matrix: "Confusion of the nearest neighbor", axis: "class of the nearest neighbor", rate: "R@1" };
    const countsOf = (stage) => (linear ? metrics.linearConfusion(gallery, stage) : metrics.confusion(gallery, stage));
    const share = (stage) => {
      const counts = countsOf(stage);
      return present.map((row) => { const sum = counts[row].reduce((a, b) => a + b, 0) || 1; return present.map((column) => (100 * counts[row][column]) / sum); });
    };

    function matrix() {
      const [old, now] = [share(before), share(after)];
      const z = own.matrix === "change" ? now.map((row, i) => row.map((value, j) => value - old[i][j])) : own.matrix === "before" ? old : now;
      const most = Math.max(1, ...z.flat().map(Math.abs));
      const plain = [[0, charts.color("card")], [1, charts.color("accent")]];
      const both = [[0, "#d1492e"], [0.5, charts.color("card")], [1, "#2b6cb0"]];
      const small = present.length > 40 ? 7 : present.length > 20 ? 9 : 11;
      return { traces: [{ type: "heatmap", x: names, y: names, z, zmin: own.matrix === "change" ? -most : 0, zmax: own.matrix === "change" ? most : 100, xgap: present.length > 40 ? 0 : 1, ygap: present.length > 40 ? 0 : 1,
        colorscale: own.matrix === "change" ? both : plain, colorbar: { thickness: 10, outlinewidth: 0, ticksuffix: "%" }, hovertemplate: "%{y} is taken for %{x}<br>%{z:.0f}%<extra></extra>" }],
        layout: { xaxis: { tickangle: -60, tickfont: { size: small }, dtick: present.length > 60 ? 5 : 1, title: what.axis }, yaxis: { autorange: "reversed", tickfont: { size: small }, dtick: present.length > 60 ? 5 : 1 } } };
    }

    function perClass() {
      const [old, now] = [before, after].map((stage) => (linear ? metrics.byClassOf(countsOf(stage)) : metrics.byClass(gallery, stage)));
      const rate = (counts, label) => (counts[label] ? (100 * counts[label][0]) / counts[label][1] : null);
      const order = [...present].sort((a, b) => rate(now, a) - rate(old, a) - (rate(now, b) - rate(old, b)));
      const y = order.map((label) => format.literal(gallery.classes[label] || label));
      const lines = { type: "scatter", mode: "lines", hoverinfo: "skip", showlegend: false, line: { color: charts.color("quiet"), width: 1.5 },
        x: order.flatMap((label) => [rate(old, label), rate(now, label), null]), y: y.flatMap((name) => [name, name, null]) };
      const dots = (name, counts, marker) => ({ type: "scatter", mode: "markers", name: format.literal(name), x: order.map((label) => rate(counts, label)), y, marker, hovertemplate: `%{y}<br>${format.literal(name)}: %{x:.0f}%<extra></extra>` });
      return { traces: [lines, dots(before.name, old, { symbol: "circle-open", size: 9, color: charts.color("text"), line: { width: 2 } }), dots(after.name, now, { size: 10, color: charts.color("accent") })],
        layout: { showlegend: false, xaxis: { side: "top", range: [-3, 103], ticksuffix: "%" }, yaxis: { type: "category", ticks: "", range: [-0.7, order.length - 0.3] } } };
    }

    function list(title, found) {
      const rank = (value) => (value ? `rank ${value}` : "none of 50");
      return el("article", { class: "card" }, el("h3", {}, title), found.length ? el("ol", { class: "changed" }, found.map((one) => el("li", {},
        clips.clip({ files: gallery.pictures?.[one.query], id: gallery.ids[one.query], className: gallery.classes[gallery.labels[one.query]] || "?", kinds: "rgb" }),
        el("div", {}, el("p", { class: "id" }, gallery.ids[one.query]), el("p", {}, `first right neighbor: ${rank(one.before)} → ${rank(one.after)}`),
          el("p", { class: "quiet" }, `nearest: ${gallery.classes[before.prediction[one.query]] || "?"} → ${gallery.classes[after.prediction[one.query]] || "?"}`))))) : el("p", { class: "quiet" }, "None."));
    }

    const changed = metrics.changes(gallery, before, after);
    const square = charts.container("confusion", Math.min(760, 220 + 24 * present.length), "Confusion matrix");
    const classes = charts.container("classes", 50 + 22 * present.length, `${what.rate} per class before and after`);
    body.replaceChildren(
      el("div", { class: "controls" }, filters.modalityChoice(gallery, () => Page.redraw("neighbors", "map", "errors")), filters.pairChoice(plan, gallery, () => Page.redraw("neighbors", "map", "errors")),
        hasLinear ? Page.choice("Errors of", [["neighbor", "nearest neighbor"], ["linear", "linear"]], own.by, (value) => { own.by = value; Page.redraw("errors"); }) : ""),
      el("p", { class: "quiet" }, `${filters.seedNote(plan)}${before.name} has R@1 ${format.number(metrics.recall(gallery, before))}, ${after.name} ${format.number(metrics.recall(gallery, after))}${chance === null ? "" : `, a random ranking ${format.number(chance)}`}.`),
      el("div", { class: "grid" },
        el("article", { class: "card" }, el("header", {}, el("h3", {}, Page.term(what.matrix)), Page.choice("", [["after", after.name], ["before", before.name], ["change", "change"]], own.matrix, (value) => { own.matrix = value; Page.redraw("errors"); })), square),
        el("article", { class: "card" }, el("h3", {}, Page.term(`${what.rate} per class, before and after`)), el("p", { class: "quiet" }, `○ ${before.name}, ● ${after.name}; the classes that gained most are at the top.`), el("div", { class: "tall", tabindex: "0" }, classes))),
      el("div", { class: "grid" }, list("Ten most improved videos", changed.improved), list("Ten most hurt videos", changed.hurt)));
    Page.whenNear(square, () => charts.draw(square, matrix));
    Page.whenNear(classes, () => charts.draw(classes, perClass));
  });
});
