// Table with the paper's columns; results have a bar with the 95% interval or the standard deviation over seeds.
"use strict";
Page.resultsTable = (() => {
  const { el, format } = Page;

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

  // Whether a stage was measured with labels, or none is measured yet.
  const labeled = (rows) => rows.some((row) => (row.r1 ?? null) !== null) || !rows.some((row) => (row.window_r1 ?? null) !== null);

  const COLUMNS = [
    ["Index", (row) => row.index],
    ["Model", (row) => el("span", {}, Page.term(row.model), row.stage === row.model ? "" : el("small", { class: "quiet stage-name" }, Page.term(row.stage)))],
    ["Modality", (row) => Page.term(row.modality ?? "–")],
    ["Init", (row) => row.init ?? "–"],
    ["Constraint", (row) => row.constraint ?? "–"],
    ["Epochs", (row) => row.epochs ?? "–"],
    ["R@1", (row) => cell(row, "r1"), labeled],
    ["paper", (row) => format.number(row.published_r1), (rows) => rows.some((row) => row.published_r1 !== null && row.published_r1 !== undefined)],
    ["Linear", (row) => cell(row, "linear"), labeled],
    ["paper", (row) => format.number(row.published_linear), (rows) => rows.some((row) => row.published_linear !== null && row.published_linear !== undefined)],
    ["Other window", (row) => format.percent(row.window_r1, row.window_r1_sd), (rows) => rows.some((row) => (row.window_r1 ?? null) !== null)],
    ["Own source", (row) => format.percent(row.source_r1, row.source_r1_sd), (rows) => rows.some((row) => (row.source_r1 ?? null) !== null)],
    ["Agreement", (row) => format.percent(row.agreement, row.agreement_sd), (rows) => rows.some((row) => (row.agreement ?? null) !== null)],
    ["Transfer", (row) => format.percent(row.transfer, row.transfer_sd), (rows) => rows.some((row) => row.transfer !== null && row.transfer !== undefined)],
    ["paper", (row) => format.number(row.published_transfer), (rows) => rows.some((row) => row.published_transfer !== null && row.published_transfer !== undefined)],
    ["Rank", (row) => format.number(row.effective_rank)],
    ["Time", (row) => format.duration(row.seconds)],
  ];

  // What a random ranking has, as the first row, if the plan has no such baseline.
  function withChance(rows) {
    const known = (name) => rows.find((row) => (row[name] ?? null) !== null)?.[name] ?? null;
    const linear = known("linear") === null ? null : known("chance");
    const values = { r1: known("chance"), linear, window_r1: known("window_chance"), source_r1: known("source_chance") };
    if (rows.some((row) => row.stage === "chance")) return rows.map((row) => (row.stage === "chance" ? { ...row, ...values, r1: row.r1 ?? values.r1, linear: row.linear ?? values.linear } : row));
    const measured = Object.values(values).some((value) => value !== null);
    return measured ? [{ index: "–", stage: "chance", model: "chance", kind: "baseline", state: "done", ...values }, ...rows] : rows;
  }

  function draw(plan) {
    const visible = COLUMNS.filter(([, , wanted]) => !wanted || wanted(plan.rows));
    const kind = (head) => head.toLowerCase().replace("@", "").replace(" ", "-");
    const body = withChance(plan.rows).map((row) => el("tr", { class: row.kind || "", "data-stage": row.stage },
      visible.map(([head, make]) => el("td", { "data-head": head, class: kind(head) }, make(row)))));
    return el("div", { class: "scroll" }, el("table", { class: "results" },
      el("thead", {}, el("tr", {}, visible.map(([head]) => el("th", { scope: "col", class: kind(head) }, Page.term(head))))), el("tbody", {}, body)));
  }

  // What the words of the table mean; only those that occur in it.
  const OCCURS = [
    ["CMSF n/k", (rows) => rows.some((row) => /^CMSF \d+\/\d+/.test(row.model))],
    ["Init", () => true],
    ["Constraint", (rows) => rows.some((row) => row.constraint)],
    ["R@1", (rows) => rows.some((row) => (row.r1 ?? null) !== null)],
    ["Linear", (rows) => rows.some((row) => (row.linear ?? null) !== null)],
    ["Other window", (rows) => rows.some((row) => (row.window_r1 ?? null) !== null)],
    ["Own source", (rows) => rows.some((row) => (row.source_r1 ?? null) !== null)],
    ["Agreement", (rows) => rows.some((row) => (row.agreement ?? null) !== null)],
    ["Rank", (rows) => rows.some((row) => (row.effective_rank ?? null) !== null)],
    ["continued", (rows) => rows.some((row) => row.stage?.startsWith("continued-"))],
    ["msf", (rows) => rows.some((row) => row.stage?.startsWith("msf-"))],
    ["oracle", (rows) => rows.some((row) => row.stage?.startsWith("oracle-"))],
    ["coclr", (rows) => rows.some((row) => row.stage?.startsWith("coclr-"))],
  ];

  function legend(plan) {
    const found = OCCURS.filter(([, occurs]) => occurs(plan.rows));
    return el("details", { class: "meanings quiet" }, el("summary", {}, "What the columns and names mean"),
      el("dl", {}, found.flatMap(([name]) => [el("dt", {}, name), el("dd", {}, Page.meaning(name))])));
  }

  return { draw, legend };
})();
