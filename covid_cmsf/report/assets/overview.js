// Overview: graph of the plan, table of results, and the same results as a chart.
"use strict";
Page.section("overview", (body) => {
  const { el, format, charts, state } = Page;
  const plan = Page.data.report.plans[state.plan];
  const RESULTS = [["r1", "R@1"], ["linear", "Linear"], ["window_r1", "Other window found"], ["source_r1", "Own source found"], ["agreement", "Agreement with the guide"]];

  // What at least one stage has.
  function choices() {
    const ranks = new Set(plan.rows.flatMap((row) => Object.keys(row.recall || {})));
    const found = RESULTS.filter(([name]) => plan.rows.some((row) => (row[name] ?? null) !== null));
    for (const rank of ranks) if (rank !== "1") found.push([`recall-${rank}`, `R@${rank}`]);
    return found;
  }
  if (!choices().some(([name]) => name === state.result)) state.result = choices()[0]?.[0] ?? "r1";

  const valueOf = (row) => (state.result.startsWith("recall-") ? row.recall?.[state.result.slice(7)] : row[state.result]) ?? null;

  function chart() {
    const rows = plan.rows.filter((row) => valueOf(row) !== null).reverse();
    const name = (row) => format.literal(row.stage === row.model ? row.stage : `${row.stage}`);
    const half = rows.map((row) => row[`${state.result}_sd`] ?? null);
    const interval = rows.map((row) => row[`${state.result}_interval`] ?? null);
    const { colors } = Page.data.report;
    const rounds = plan.rows.some((row) => row.kind === "round");
    const bars = {
      type: "bar", orientation: "h", name: "ours", showlegend: false, x: rows.map(valueOf), y: rows.map(name),
      marker: { color: rows.map((row) => colors[row.modality] || "#888888"), opacity: rows.map((row) => (row.kind === "round" || !rounds ? 1 : 0.55)) },
      error_x: { type: "data", visible: rows.some((_, i) => half[i] ?? interval[i]), symmetric: false, thickness: 1.4, width: 4, color: charts.color("text"),
        array: rows.map((row, i) => half[i] ?? (interval[i] ? interval[i][1] - valueOf(row) : 0)),
        arrayminus: rows.map((row, i) => half[i] ?? (interval[i] ? valueOf(row) - interval[i][0] : 0)) },
      text: rows.map((row) => format.literal(`${row.model} on ${row.modality ?? "–"}`)), textposition: "none",
      hovertemplate: "%{y}<br>%{text}<br>%{x:.1f}<extra></extra>",
    };
    const paper = rows.filter((row) => row[`published_${state.result}`] !== null && row[`published_${state.result}`] !== undefined);
    const dots = { type: "scatter", mode: "markers", name: "published", x: paper.map((row) => row[`published_${state.result}`]), y: paper.map(name),
      marker: { symbol: "diamond-open", size: 10, color: charts.color("text"), line: { width: 2 } }, hovertemplate: "%{y}<br>published %{x:.1f}<extra></extra>" };
    const random = chanceOf[state.result] ?? null;
    const line = random !== null ? [{ type: "line", x0: random, x1: random, y0: 0, y1: 1, yref: "paper", line: { dash: "dot", width: 1, color: charts.color("quiet") } }] : [];
    return { traces: paper.length ? [bars, dots] : [bars], layout: { shapes: line, bargap: 0.35, showlegend: paper.length > 0, legend: { orientation: "h", y: 1, yanchor: "bottom" },
      xaxis: { title: `${choices().find(([value]) => value === state.result)[1]}, percent`, rangemode: "tozero" }, yaxis: { ticks: "", fixedrange: true } } };
  }

  // The color of each modality in the chart, and how rounds differ.
  function colorNote() {
    const modalities = [...new Set(plan.rows.filter((row) => row.modality && valueOf(row) !== null).map((row) => row.modality))];
    const swatches = modalities.map((name) => el("span", { class: "color-name" }, el("i", { class: "swatch", style: `--own:${Page.data.report.colors[name] || "#888888"}` }), Page.term(name)));
    const note = plan.rows.some((row) => row.kind === "round") ? el("span", {}, "rounds have full opacity") : "";
    return el("span", { class: "quiet color-note" }, swatches, note);
  }

  const chance = plan.rows.find((row) => (row.chance ?? null) !== null)?.chance ?? plan.rows.find((row) => row.stage === "chance")?.r1 ?? null;
  const known = (name) => plan.rows.find((row) => (row[name] ?? null) !== null)?.[name] ?? null;
  const chanceOf = { r1: chance, window_r1: known("window_chance"), source_r1: known("source_chance") };
  const measures = RESULTS.filter(([name]) => (chanceOf[name] ?? null) !== null);
  const over = [[plan.splits, "splits"], [plan.seeds, "seeds"]].filter(([values]) => values.length > 1).map(([values, name]) => `the ${name} ${values.join(", ")}`);
  const about = over.length ? `Mean${plan.seeds.length > 1 ? " and standard deviation" : ""} over ${over.join(" and ")}.` : known("r1_interval") ? "Bars have 95% intervals (resampling the videos' sources)." : "";
  const counts = new Set(plan.rows.map((row) => row.num_query).filter((count) => count));
  const asked = counts.size === 1 ? ` Measured on ${format.count([...counts][0])} videos.` : "";
  const facts = [about, asked, plan.protocol ? ` Protocol ${plan.protocol}.` : "", measures.length ? ` A random ranking has: ${measures.map(([name, label]) => `${label} ${format.number(chanceOf[name])}`).join(", ")}.` : "",
    plan.rows.some((row) => row.published_r1 !== null && row.published_r1 !== undefined) ? " Diamonds and the columns “paper” are published figures." : ""].join("");
  const container = charts.container(`results-${state.plan}`, 90 + 24 * plan.rows.filter((row) => valueOf(row) !== null).length, "Results of all stages");
  const measured = plan.rows.some((row) => valueOf(row) !== null);
  body.replaceChildren(
    el("p", { class: "headline" }, plan.headline),
    plan.resume ? Page.missing(`${plan.progress[0]} of ${plan.progress[1]} stages are done. To go on: `, plan.resume) : "",
    plan.kind === "plan" ? Page.planGraph.draw(plan) : "",
    el("p", { class: "quiet" }, facts),
    Page.resultsTable.draw(plan),
    Page.resultsTable.legend(plan),
    Page.gainsTable.draw(plan),
    measured ? el("div", { class: "controls" }, Page.choice("Chart of", choices(), state.result, (value) => { state.result = value; Page.redraw("overview"); }),
      colorNote()) : Page.missing("There are no results yet. ", plan.missing ?? plan.go_on),
    measured ? container : "");
  if (measured) Page.whenNear(container, () => charts.draw(container, chart));
});
