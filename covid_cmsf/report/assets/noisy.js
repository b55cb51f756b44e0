// Figure 2 of the paper: neighbors with the same, partly wrong label, of a query with a correct and with a wrong label.
"use strict";
Page.noisy = () => {
  const { el, format, clips } = Page;
  const galleries = Page.data.report.noisy;
  if (!galleries.length) return "";
  const KINDS = { correct: "query labeled rightly", wrong: "query labeled wrongly", random: "random, same label" };
  const one = (shown, right) => el("figure", { class: `clip ${right === null ? "query-clip" : right ? "right" : "wrong"}`, title: shown.id },
    el("div", { class: "frame" }, el("img", { src: `pictures/${shown.picture}`, alt: `${shown.id} (${shown.class})`, loading: "lazy" }), right === null ? null : el("span", { class: "sign" }, right ? "✓" : "✗")),
    el("figcaption", {}, el("span", { class: "class-name" }, shown.class), shown.similarity === null ? null : el("span", { class: "quiet" }, format.number(shown.similarity, 2))));
  return el("div", { class: "noisy" }, el("h3", {}, "Neighbors under label noise"),
    el("p", { class: "quiet" }, "Nearest training images with the same label, which is wrong for some. If the constraint works, they resemble the query even if its label is wrong."),
    galleries.map((gallery) => el("article", { class: "card" },
      el("h4", {}, `${gallery.stage}: images labeled “${gallery.label}”`),
      gallery.rows.map((row) => el("div", { class: "neighbor-row" },
        el("div", { class: "neighbor-caption" }, el("b", {}, KINDS[row.kind]), el("span", { class: "quiet" }, `${Math.round(100 * row.purity)}% are truly ${row.expected_class}`)),
        el("div", { class: "strip", tabindex: "0" }, row.query ? one(row.query, null) : "", row.neighbors.map((shown) => one(shown, shown.class === row.expected_class))))))));
};
