// Table of gains over start and controls, with the 95% interval of the paired difference; intervals without zero are marked.
"use strict";
Page.gainsTable = (() => {
  const { el } = Page;
  const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(1)}`;

  function cell(gain) {
    const kind = gain.low > 0 ? "better" : gain.high < 0 ? "worse" : "";
    return el("td", { class: kind }, `${signed(gain.difference)} [${signed(gain.low)}, ${signed(gain.high)}]`);
  }

  function draw(plan) {
    const { rows, notes, unanswered } = plan.gains;
    const missing = unanswered.length ? el("p", { class: "quiet" }, `No gains of ${unanswered.join(", ")}: measured by an older version. This measures again, and trains nothing that is done: `, el("code", {}, plan.resume)) : "";
    if (!rows.length) return missing;
    const several = new Set(rows.map((row) => `${row.num_seeds} ${row.num_splits}`)).size > 1;
    const heads = ["Stage", "Over", "R@1", "Linear", ...(several ? ["Seeds"] : []), "Verdict"];
    const body = rows.map((row) => el("tr", {}, el("td", {}, Page.term(row.stage)), el("td", {}, Page.term(row.over), row.is_start ? " (start)" : ""),
      cell(row.r1), cell(row.linear), several ? el("td", {}, String(row.num_seeds)) : "", el("td", {}, row.verdict)));
    return el("div", { class: "gains" }, el("h3", {}, "Gains in points"), el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, Page.term(head))))), el("tbody", {}, body))),
    notes.map((note) => el("p", { class: "quiet" }, note)), missing);
  }

  return { draw };
})();
