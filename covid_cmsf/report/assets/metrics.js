// Metrics computed from ranks; the mean of the hits is R@1 of the table.
"use strict";
Page.metrics = (() => {
  const hit = (stage, query) => stage.first_correct[query] === 1;

  // {class number: [hits, videos]}
  function byClass(gallery, stage) {
    const found = {};
    for (let query = 0; query < gallery.num_queries; query++) {
      if (stage.first_correct[query] === null) continue;
      const own = (found[gallery.labels[query]] ||= [0, 0]);
      own[0] += hit(stage, query) ? 1 : 0;
      own[1] += 1;
    }
    return found;
  }

  function recall(gallery, stage) {
    const totals = Object.values(byClass(gallery, stage)).reduce((sum, own) => [sum[0] + own[0], sum[1] + own[1]], [0, 0]);
    return totals[1] ? (100 * totals[0]) / totals[1] : null;
  }

  // rows: true class; columns: class of the nearest neighbor. Counts.
  function confusion(gallery, stage) {
    const size = gallery.classes.length;
    const counts = Array.from({ length: size }, () => new Array(size).fill(0));
    for (let query = 0; query < gallery.num_queries; query++) {
      if (stage.prediction[query] !== null) counts[gallery.labels[query]][stage.prediction[query]] += 1;
    }
    return counts;
  }

  // The same counts of the linear classifier; null if the stage has none, or of other classes.
  function linearConfusion(gallery, stage) {
    const counts = stage.linear_confusion;
    return counts && counts.length === gallery.classes.length ? counts : null;
  }

  // {class number: [right, videos]} of such counts
  function byClassOf(counts) {
    return Object.fromEntries(counts.map((row, label) => [label, [row[label], row.reduce((a, b) => a + b, 0)]]).filter(([, own]) => own[1]));
  }

  // A video that one of the stages could not read is neither right nor wrong.
  function outcome(before, after, query) {
    if (before.first_correct[query] === null || after.first_correct[query] === null) return "unmeasured";
    const [old, now] = [hit(before, query), hit(after, query)];
    return old === now ? (now ? "right" : "wrong") : now ? "improved" : "hurt";
  }

  // The most improved and most hurt queries, by the change of 1 / (rank of the first correct neighbor).
  function changes(gallery, before, after, most = 10) {
    const score = (rank) => (rank ? 1 / rank : 0);
    const all = [];
    for (let query = 0; query < gallery.num_queries; query++) {
      const [old, now] = [before.first_correct[query], after.first_correct[query]];
      if (old === null || now === null) continue;
      all.push({ query, before: old, after: now, change: score(now) - score(old) });
    }
    all.sort((a, b) => b.change - a.change || a.query - b.query);
    return { improved: all.filter((one) => one.change > 0).slice(0, most), hurt: all.filter((one) => one.change < 0).slice(-most).reverse() };
  }

  return { hit, byClass, recall, confusion, linearConfusion, byClassOf, outcome, changes };
})();
