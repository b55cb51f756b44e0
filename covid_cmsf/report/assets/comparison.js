// Comparison of plans: those that differ only in seeds form a group, with mean and standard deviation.
"use strict";
Page.section("comparison", (body) => {
  const { el, format, charts, state } = Page;
  const found = Page.data.report.comparison;
  if (!found) {
    body.replaceChildren(Page.missing("This report has one plan. To compare several, and to group seeds: ", Page.data.report.command_of_several));
    return;
  }
  state.compared ||= "r1";
  const colors = ["#4477aa", "#ee6677", "#228833", "#aa3377", "#cc8800", "#33a6c9", "#888888"];
  const groupLabel = (group) => `${group.name}${group.seeds.length > 1 ? ` (${group.seeds.length} seeds)` : ""}`;

  function chart() {
    const traces = [];
    const stages = [...found.stages].reverse();
    [...found.groups.entries()].reverse().forEach(([number, group]) => { // the lowest bar is drawn first
      const mine = stages.filter((stage) => (stage.groups[number]?.[state.compared].mean ?? null) !== null);
      const cell = (stage) => stage.groups[number][state.compared];
      const name = format.literal(groupLabel(group));
      traces.push({ type: "bar", orientation: "h", name, legendgroup: number, x: mine.map((stage) => cell(stage).mean), y: mine.map((stage) => format.literal(stage.stage)),
        marker: { color: colors[number % colors.length] }, customdata: mine.map((stage) => cell(stage).values.map((value) => value.toFixed(1)).join(", ")),
        error_x: { type: "data", visible: mine.some((stage) => cell(stage).sd !== null), array: mine.map((stage) => cell(stage).sd ?? 0), thickness: 1.4, width: 4, color: charts.color("text") },
        hovertemplate: `%{y}<br>${name}: %{x:.1f}<br>of %{customdata}<extra></extra>` });
    });
    return { traces, layout: { barmode: "group", legend: { orientation: "h", y: 1, yanchor: "bottom", traceorder: "reversed" }, xaxis: { title: state.compared === "r1" ? "R@1, percent" : "Linear, percent", rangemode: "tozero" }, yaxis: { ticks: "" } } };
  }

  const heads = ["Stage", "Model", "Modality", ...found.groups.flatMap((group) => [Page.term(`${groupLabel(group)} R@1`, "R@1"), "Linear"])];
  const rows = found.stages.map((stage) => [Page.term(stage.stage), Page.term(stage.model), Page.term(stage.modality ?? "–"), ...found.groups.flatMap((_, number) => {
    const own = stage.groups[number];
    return own ? [format.percent(own.r1.mean, own.r1.sd), format.percent(own.linear.mean, own.linear.sd)] : ["", ""];
  })]);
  const container = charts.container("comparison", 120 + 14 * found.stages.length * found.groups.length + 10 * found.stages.length, "Results of all plans");
  body.replaceChildren(
    el("ul", { class: "groups" }, found.groups.map((group) => el("li", {}, el("b", {}, group.name), ` — ${group.plans.join(", ")}`, group.seeds.some((seed) => seed !== null) ? `; seeds ${group.seeds.map((seed) => seed ?? "?").join(", ")}` : ""))),
    el("p", { class: "quiet" }, "Plans and runs that differ only in their seed form a group: mean ± standard deviation over seeds."),
    Page.plain(heads, rows, { class: "compared" }),
    el("div", { class: "controls" }, Page.choice("Chart of", [["r1", "R@1"], ["linear", "Linear"]], state.compared, (value) => { state.compared = value; Page.redraw("comparison"); })),
    container);
  Page.whenNear(container, () => charts.draw(container, chart));
});
