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
    ["Other window", (row) => format.percent(row.window_r1, row.window_r1_sd), (rows) => rows.some((row) => (row.window_r1 ?? null) !== null)],
    ["Own source", (row) => format.percent(row.source_r1, row.source_r1_sd), (rows) => rows.some((row) => (row.source_r1 ?? null) !== null)],
    ["Agreement", (row) => format.percent(row.agreement, row.agreement_sd), (rows) => rows.some((row) => (row.agreement ?? null) !== null)],
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

  // What the words of the table mean; only those that occur in it.
  const MEANINGS = [
    ["CMSF n/k", "constrained mean shift: each video is pulled toward the mean of its k nearest among the n candidates of the guide.", (rows) => rows.some((row) => /^CMSF \d+\/\d+/.test(row.model))],
    ["Init", "the stage that the network started from.", () => true],
    ["Constraint", "the stage whose network is the guide, or “labels”.", (rows) => rows.some((row) => row.constraint)],
    ["R@1", "percentage of test videos whose nearest training video has their class.", (rows) => rows.some((row) => (row.r1 ?? null) !== null)],
    ["Linear", "accuracy of a linear classifier on the frozen features.", (rows) => rows.some((row) => (row.linear ?? null) !== null)],
    ["Other window", "percentage of videos whose first window finds their own last window among those of all videos.", (rows) => rows.some((row) => (row.window_r1 ?? null) !== null)],
    ["Own source", "percentage of videos whose nearest other video is of the same source (footage); asked are those that have one.", (rows) => rows.some((row) => (row.source_r1 ?? null) !== null)],
    ["Agreement", "share of a video's ten nearest that the guide finds, too.", (rows) => rows.some((row) => (row.agreement ?? null) !== null)],
    ["Rank", "effective rank: how many directions the features use. A fall means collapse.", (rows) => rows.some((row) => (row.effective_rank ?? null) !== null)],
    ["continued", "control: more InfoNCE, as long as a round.", (rows) => rows.some((row) => row.stage?.startsWith("continued-"))],
    ["msf", "control: mean shift without a constraint, as long as a round.", (rows) => rows.some((row) => row.stage?.startsWith("msf-"))],
    ["oracle", "control: true labels as the constraint, an upper bound for any guide.", (rows) => rows.some((row) => row.stage?.startsWith("oracle-"))],
    ["coclr", "control: CoCLR's contrastive loss, guided by the other pretrained network.", (rows) => rows.some((row) => row.stage?.startsWith("coclr-"))],
  ];

  function legend(plan) {
    const found = MEANINGS.filter(([, , occurs]) => occurs(plan.rows));
    return el("details", { class: "meanings quiet" }, el("summary", {}, "What the columns and names mean"),
      el("dl", {}, found.flatMap(([name, text]) => [el("dt", {}, name), el("dd", {}, text)])));
  }

  return { draw, legend };
})();
