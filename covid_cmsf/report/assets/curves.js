// Curves of all runs; chips toggle families of lines in all charts.
"use strict";
Page.section("curves", (body) => {
  const { el, format, charts, state } = Page;
  const { charts: kinds, lines, smoothing } = Page.data.report.curves;
  if (!lines.length) {
    body.replaceChildren(Page.missing("Nothing has been logged yet (metrics.jsonl). To go on: ", Page.data.report.plans[state.plan].go_on));
    return;
  }
  const families = [...new Map(lines.map((line) => [line.family, line])).values()];
  const first = families.length > 8 ? families.filter((line) => line.kind === "control") : []; // too many to read at once
  state.curves ||= { hidden: new Set(first.map((line) => line.label)), x: "step", seeds: "mean", log: false, smooth: true };
  const own = state.curves;
  const several = lines.some((line) => line.seed === "mean");
  const DASHES = { 1: "dot", 2: "dashdot" };
  const again = () => Page.redraw("curves");

  function shown() {
    const kept = new Set(lines.filter((line) => line.seed === "mean").map((line) => line.family));
    return lines.filter((line) => !own.hidden.has(line.label) && (!kept.has(line.family) || (line.seed === "mean") === (own.seeds === "mean")));
  }

  // A running mean, centered and narrower toward both ends, so that the ends keep their values; as in curves.py.
  const reach = (values) => Math.floor(values.length / smoothing);
  Page.smooth = (values) => values.map((value, i) => {
    const near = Math.min(i, values.length - 1 - i, reach(values));
    const present = values.slice(i - near, i + near + 1).filter((one) => one !== null);
    return value === null ? null : present.reduce((sum, one) => sum + one, 0) / present.length;
  });
  const smoothed = (kind, values) => (own.smooth && kind.smooth ? Page.smooth(values) : values);

  function band(kind, line, x, key) {
    const [middle, half] = [smoothed(kind, line.curve[key]), smoothed(kind, line.spread[key])];
    const low = middle.map((value, i) => (value === null ? null : value - half[i]));
    const high = middle.map((value, i) => (value === null ? null : value + half[i]));
    return { type: "scatter", mode: "lines", x: [...x, ...[...x].reverse()], y: [...high, ...low.reverse()], fill: "toself", fillcolor: `${line.color}2e`, line: { width: 0 }, hoverinfo: "skip", showlegend: false };
  }

  const has = (kind, line, key) => line.curve[key] && (kind.loss === null || kind.loss === line.loss);

  function traces(kind) {
    const made = [];
    for (const line of shown()) {
      kind.keys.forEach(([key, name], number) => {
        if (!has(kind, line, key)) return;
        const x = line.curve[own.x] || line.curve.step;
        if (line.spread && number === 0) made.push(band(kind, line, x, key));
        const label = format.literal([line.label, line.seed, kind.keys.length > 1 ? name : ""].filter(Boolean).join(", "));
        if (own.smooth && kind.smooth && number === 0 && !line.spread && reach(x)) made.push({ type: "scatter", mode: "lines", x, y: line.curve[key], opacity: 0.25, line: { color: line.color, width: 1 }, hoverinfo: "skip", showlegend: false });
        made.push({ type: "scatter", mode: x.length < 2 ? "markers" : "lines", x, y: smoothed(kind, line.curve[key]), name: label, showlegend: false,
          line: { color: line.color, width: number ? 1.2 : 2, dash: DASHES[number] || line.dash },
          hovertemplate: `${label}<br>%{y:.4g} at %{x}<extra></extra>` });
      });
    }
    return made;
  }

  // A run takes settings on its command line; a plan has them in its file.
  const command = (kind) => { const plan = Page.data.report.plans[state.plan]; return plan.kind === "run" ? `${plan.go_on} ${kind.command}` : kind.command; };

  function card(kind) {
    const container = charts.container(`curve-${kind.name}`, 270, kind.title);
    const there = kind.keys.some(([key]) => lines.some((line) => has(kind, line, key)));
    const looks = ["Full lines", "dotted", "dash-dotted"]; // charts have one to three keys
    const keys = kind.keys.length > 1 ? ` ${kind.keys.map(([, name], number) => `${looks[number]}: ${name}`).join("; ")}.` : "";
    if (there) Page.whenNear(container, () => charts.draw(container, () => ({ traces: traces(kind), layout: {
      hovermode: "closest", xaxis: { title: own.x === "step" ? "step" : "seconds of training" },
      yaxis: { type: kind.log || (kind.keys[0][0] === "loss" && own.log) ? "log" : "linear", exponentformat: "power" } } })));
    return el("article", { class: "card" },
      el("header", {}, el("h3", {}, Page.term(kind.title)), el("span", { class: "links" }, kind.figures.map((file) => el("a", { href: `figures/${file}` }, file.split(".").pop().toUpperCase())))),
      el("p", { class: "quiet" }, kind.description + keys),
      there ? container : kind.command ? Page.missing(kind.missing, command(kind)) : el("p", { class: "quiet" }, kind.missing));
  }

  const chip = (line) => {
    const on = !own.hidden.has(line.label);
    return el("button", { type: "button", class: "chip", "aria-pressed": String(on), onclick: () => { if (on) own.hidden.add(line.label); else own.hidden.delete(line.label); again(); } },
      el("i", { class: `swatch ${line.dash}`, style: `--own:${line.color}` }), line.label);
  };
  const only = (test) => { own.hidden = new Set(families.filter((line) => !test(line)).map((line) => line.label)); again(); };
  const grouped = new Set(lines.map((line) => line.group)).size > 1;
  const colorNote = `Colors are those of the bars: ${grouped ? "one per group of plans" : "one per modality, rounds in full color"}. A smoothed point is the mean over a tenth of the curve${several ? "" : "; measured values are faint"}.`;
  const modalities = [...new Set(families.map((line) => line.modality))];
  body.replaceChildren(
    el("div", { class: "controls" },
      Page.choice("Over", [["step", "steps"], ["seconds", "training time"]], own.x, (value) => { own.x = value; again(); }),
      several ? Page.choice("Seeds", [["mean", "mean and standard deviation"], ["each", "every seed"]], own.seeds, (value) => { own.seeds = value; again(); }) : "",
      Page.tick("smoothed", own.smooth, (value) => { own.smooth = value; again(); }),
      Page.tick("logarithmic loss", own.log, (value) => { own.log = value; again(); }),
      Page.button("all", () => only(() => true)), Page.button("none", () => only(() => false)),
      modalities.length > 1 ? modalities.map((name) => Page.button(`only ${name}`, () => only((line) => line.modality === name))) : ""),
    el("p", { class: "quiet" }, colorNote),
    el("div", { class: "chips", role: "group", "aria-label": "Runs" }, families.map(chip)),
    el("div", { class: "grid" }, kinds.map(card)));
});
