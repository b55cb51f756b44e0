// Numbers that follow from ranks: the same hits whose mean is R@1 in the table.
"use strict";
Report.measures = (() => {
  const hit = (stage, query) => stage.first_right[query] === 1;

  // {class number: [hits, videos]}
  function byClass(series, stage) {
    const found = {};
    for (let query = 0; query < series.num_queries; query++) {
      if (stage.first_right[query] === null) continue;
      const own = (found[series.labels[query]] ||= [0, 0]);
      own[0] += hit(stage, query) ? 1 : 0;
      own[1] += 1;
    }
    return found;
  }

  function recall(series, stage) {
    const totals = Object.values(byClass(series, stage)).reduce((sum, own) => [sum[0] + own[0], sum[1] + own[1]], [0, 0]);
    return totals[1] ? (100 * totals[0]) / totals[1] : null;
  }

  // rows: true class; columns: class of the nearest neighbor. Counts.
  function confusion(series, stage) {
    const size = series.classes.length;
    const counts = Array.from({ length: size }, () => new Array(size).fill(0));
    for (let query = 0; query < series.num_queries; query++) {
      if (stage.answer[query] !== null) counts[series.labels[query]][stage.answer[query]] += 1;
    }
    return counts;
  }

  function outcome(before, after, query) {
    const [old, now] = [hit(before, query), hit(after, query)];
    return old === now ? (now ? "right" : "wrong") : now ? "improved" : "hurt";
  }

  // By the change of 1 / (rank of the first right neighbor): the most improved, and the most hurt.
  function changes(series, before, after, most = 10) {
    const score = (rank) => (rank ? 1 / rank : 0);
    const all = [];
    for (let query = 0; query < series.num_queries; query++) {
      const [old, now] = [before.first_right[query], after.first_right[query]];
      if (old === null || now === null) continue;
      all.push({ query, before: old, after: now, change: score(now) - score(old) });
    }
    all.sort((a, b) => b.change - a.change || a.query - b.query);
    return { improved: all.filter((one) => one.change > 0).slice(0, most), hurt: all.filter((one) => one.change < 0).slice(-most).reverse() };
  }

  return { hit, byClass, recall, confusion, outcome, changes };
})();
