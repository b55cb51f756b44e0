// Table with the paper's columns; results have a bar with the 95% interval or the standard deviation over seeds.
"use strict";
Report.resultsTable = (() => {
  const { el, format } = Report;

  function bar(value, low, high, published, text) {
    const at = (percent) => `${Math.max(0, Math.min(100, percent))}%`;
    return el("div", { class: "result" },
      el("span", { class: "value" }, text),
      el("span", { class: "bar", "aria-hidden": "true" },
        el("i", { class: "fill", style: `width:${at(value)}` }),
        low !== null && el("i", { class: "interval", style: `left:${at(low)};width:${at(high - low)}` }),
        published !== null && published !== undefined && el("i", { class: "published", style: `left:${at(published)}` })));
  }

  function cell(row, name) {
    const value = row[name];
    if (value === null || value === undefined) {
      const state = row.state === "begun" ? `${Math.round(100 * row.done_fraction)}% trained` : row.state === "waiting" ? "to do" : "";
      return el("span", { class: "quiet" }, name === "r1" ? state : "");
    }
    const spread = row[`${name}_sd`], interval = row[`${name}_interval`];
    const ends = spread ? [value - spread, value + spread] : interval || [null, null];
    return bar(value, ends[0], ends[1], row[`published_${name}`], format.percent(value, spread));
  }

  const COLUMNS = [
    ["Index", (row) => row.index],
    ["Model", (row) => el("span", {}, row.model, row.stage === row.model ? "" : el("small", { class: "quiet stage-name" }, row.stage))],
    ["Modality", (row) => row.modality ?? "–"],
    ["Init", (row) => row.init ?? "–"],
    ["Constraint", (row) => row.constraint ?? "–"],
    ["Epochs", (row) => row.epochs ?? "–"],
    ["R@1", (row) => cell(row, "r1")],
    ["paper", (row) => format.number(row.published_r1), (rows) => rows.some((row) => row.published_r1 !== null && row.published_r1 !== undefined)],
    ["Linear", (row) => cell(row, "linear")],
    ["paper", (row) => format.number(row.published_linear), (rows) => rows.some((row) => row.published_linear !== null && row.published_linear !== undefined)],
    ["Transfer", (row) => format.percent(row.transfer, row.transfer_sd), (rows) => rows.some((row) => row.transfer !== null && row.transfer !== undefined)],
    ["paper", (row) => format.number(row.published_transfer), (rows) => rows.some((row) => row.published_transfer !== null && row.published_transfer !== undefined)],
    ["Rank", (row) => format.number(row.effective_rank)],
    ["Time", (row) => format.duration(row.seconds)],
  ];

  function draw(plan) {
    const visible = COLUMNS.filter(([, , wanted]) => !wanted || wanted(plan.rows));
    const kind = (head) => head.toLowerCase().replace("@", "");
    const body = plan.rows.map((row) => el("tr", { class: row.kind || "", "data-stage": row.stage },
      visible.map(([head, make]) => el("td", { "data-head": head, class: kind(head) }, make(row)))));
    return el("div", { class: "scroll" }, el("table", { class: "results" },
      el("thead", {}, el("tr", {}, visible.map(([head]) => el("th", { scope: "col", class: kind(head) }, head)))), el("tbody", {}, body)));
  }

  return { draw };
})();
