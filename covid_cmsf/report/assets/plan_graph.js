// Graph of the plan: columns are steps, lanes are modalities; solid edges are init, dashed edges guides.
"use strict";
Page.planGraph = (() => {
  const { el, svg, format } = Page;
  const BOX = { width: 172, height: 50 }, GAP = { x: 62, y: 16 }, LANE = 26, PAD = 12;

  function position(node) {
    return { x: PAD + node.column * (BOX.width + GAP.x), y: PAD + LANE + node.row * (BOX.height + GAP.y) + node.lane * LANE };
  }

  // From the right edge of one box to the left edge of another; over several columns it runs in the gap between rows.
  function route(from, to) {
    const a = { x: from.x + BOX.width, y: from.y + BOX.height / 2 };
    const b = { x: to.x, y: to.y + BOX.height / 2 };
    if (to.x - from.x <= BOX.width + GAP.x + 1) return `M${a.x},${a.y} C${a.x + 34},${a.y} ${b.x - 34},${b.y} ${b.x},${b.y}`;
    const level = to.y > from.y ? to.y - GAP.y / 2 : to.y + BOX.height + GAP.y / 2;
    const [left, right] = [a.x + GAP.x * 0.6, b.x - GAP.x * 0.6];
    return `M${a.x},${a.y} C${a.x + 24},${a.y} ${left - 14},${level} ${left},${level} H${right} C${right + 14},${level} ${b.x - 24},${b.y} ${b.x},${b.y}`;
  }

  // Without labels there is no R@1: then the other window.
  const shownResult = (rows) => (!rows.some((row) => (row.r1 ?? null) !== null) && rows.some((row) => (row.window_r1 ?? null) !== null) ? "window_r1" : "r1");

  function box(node, rows) {
    const row = rows[node.stage];
    const { x, y } = position(node);
    const group = svg("g", { class: `stage ${row?.state || ""} ${row?.kind || ""}`, transform: `translate(${x},${y})`, tabindex: "0", "data-stage": node.stage });
    const title = svg("title");
    title.textContent = [node.stage, row?.model, row?.epochs && `${row.epochs} epochs`, row?.state].filter(Boolean).join("\n");
    const text = (x, y, kind, content) => {
      const made = svg("text", { x, y, class: kind });
      made.textContent = content;
      return made;
    };
    const value = row?.[shownResult(Object.values(rows))] ?? null;
    const result = value !== null ? format.number(value) : row?.state === "begun" ? `${Math.round(100 * row.done_fraction)}%` : row?.state === "done" ? "done" : "to do";
    group.append(title, svg("rect", { width: BOX.width, height: BOX.height, rx: 7 }),
      text(10, 20, "name", format.short(node.stage, 16)), text(BOX.width - 10, 20, "result", result), text(10, 38, "model", format.short(row?.model || "", 26)));
    return group;
  }

  function legend(plan) {
    const name = shownResult(plan.rows) === "r1" ? "R@1" : "Other window";
    const line = (kind, text) => el("span", {}, (() => {
      const made = svg("svg", { width: 34, height: 10, class: "edge-key" });
      made.append(svg("path", { d: "M1,5 H33", class: `edge ${kind}` }));
      return made;
    })(), text);
    return el("p", { class: "legend quiet" }, line("init", "init"), line("guide", "guide"), el("span", {}, el("span", { class: "text" }, "The number is ", Page.term(name), "; blue stages are rounds.")));
  }

  function draw(plan) {
    const { nodes, edges, lanes, num_columns } = plan.layout;
    const rows = Object.fromEntries(plan.rows.map((row) => [row.stage, row]));
    const total = lanes.reduce((sum, lane) => sum + lane[1], 0);
    const width = 2 * PAD + num_columns * (BOX.width + GAP.x) - GAP.x;
    const height = 2 * PAD + total * (BOX.height + GAP.y) + lanes.length * LANE;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "The stages of the plan" });
    const arrow = (id) => {
      const marker = svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" });
      marker.append(svg("path", { d: "M0,0.5 L8,4 L0,7.5 z", class: `arrow ${id}` }));
      return marker;
    };
    const marks = svg("defs");
    marks.append(arrow("init"), arrow("guide"));
    picture.append(marks);
    let top = PAD;
    for (const [name, count] of lanes) {
      const label = svg("text", { x: PAD, y: top + 16, class: "lane" });
      label.textContent = name || "modality not known yet";
      picture.append(label);
      top += LANE + count * (BOX.height + GAP.y);
    }
    const positions = Object.fromEntries(nodes.map((node) => [node.stage, position(node)]));
    for (const edge of edges) {
      picture.append(svg("path", { d: route(positions[edge.start], positions[edge.end]), class: `edge ${edge.kind}`, "marker-end": `url(#${edge.kind})`, "data-start": edge.start, "data-end": edge.end }));
    }
    for (const node of nodes) picture.append(box(node, rows));
    light(picture);
    return el("div", {}, el("div", { class: "scroll graph" }, picture), legend(plan));
  }

  // Hovering or focusing a stage highlights its dependencies and dependents.
  function light(picture) {
    for (const group of picture.querySelectorAll(".stage")) {
      const own = [...picture.querySelectorAll(".edge")].filter((edge) => [edge.dataset.start, edge.dataset.end].includes(group.dataset.stage));
      const set = (on) => own.forEach((edge) => edge.classList.toggle("lit", on));
      for (const name of ["mouseenter", "focus"]) group.addEventListener(name, () => set(true));
      for (const name of ["mouseleave", "blur"]) group.addEventListener(name, () => set(false));
    }
  }

  return { draw };
})();
