// Neighbors: per query, one row per stage.
"use strict";
Page.section("neighbors", (body) => {
  const { el, format, state, filters, metrics, clips } = Page;
  state.gallery ||= { page: 0, className: "", outcome: "", kinds: "both", all: false, text: "", only: null };
  const own = state.gallery;
  const PAGE = 6;
  const OUTCOMES = [["", "all"], ["right-now", "right after"], ["wrong-now", "wrong after"], ["improved", "improved"], ["hurt", "hurt"], ["right", "right before and after"], ["wrong", "wrong before and after"]];

  filters.withGallery(body, ["neighbors"], (plan, gallery, neighbors) => {
    const width = neighbors[0].indices.length / gallery.shown.length;
    const mine = filters.stagesOf(gallery);
    const [before, after] = filters.pair(plan, gallery);
    const become = (query) => metrics.outcome(gallery.stages[before], gallery.stages[after], query);
    const className = (video) => (gallery.labeled ? gallery.classes[gallery.labels[video]] || "?" : "");
    const again = () => Page.redraw("neighbors");
    const change = (name) => (value) => { own[name] = value; own.page = 0; own.only = null; again(); };

    function wanted() {
      return gallery.shown.map((query, position) => [query, position]).filter(([query]) => {
        if (own.only !== null) return query === own.only;
        if (own.className !== "" && gallery.labels[query] !== Number(own.className)) return false;
        if (own.text && !gallery.ids[query].toLowerCase().includes(own.text.toLowerCase())) return false;
        const now = become(query);
        const rank = gallery.stages[after].first_correct[query];
        if (own.outcome === "right-now") return rank === 1;
        if (own.outcome === "wrong-now") return rank !== null && rank !== 1;
        return !own.outcome || own.outcome === now;
      });
    }

    function row(number, stage, query, position) {
      const rank = stage.first_correct[query];
      const verdict = !gallery.labeled ? "" : rank === null ? "not measured" : rank === 0 ? "none of 50 is right" : rank === 1 ? "first is right" : `first right at ${rank}`;
      const cells = [];
      for (let k = 0; k < width; k++) {
        const video = neighbors[number].indices[position * width + k];
        if (video < 0) continue;
        cells.push(clips.clip({ files: gallery.pictures?.[video], id: gallery.ids[video], className: className(video),
          right: gallery.labeled ? gallery.labels[video] === gallery.labels[query] : null, note: format.number(neighbors[number].similarity[position * width + k] / 1000, 2), kinds: own.kinds }));
      }
      return el("div", { class: "neighbor-row", "data-stage": stage.name },
        el("div", { class: "neighbor-caption" }, el("b", {}, stage.name), el("span", { class: "quiet" }, [plan.kind === "plan" ? stage.kind : "", verdict].filter(Boolean).join(" · "))),
        el("div", { class: "strip", tabindex: "0", role: "group", "aria-label": `Neighbors by ${stage.name}` }, cells));
    }

    function card([query, position]) {
      const shown = mine.filter(([number, stage]) => own.all || ["pretrain", "round"].includes(stage.kind) || number === before || number === after);
      return el("article", { class: "card query", "data-outcome": gallery.labeled ? become(query) : "", "data-class": gallery.labels[query], "data-id": gallery.ids[query] },
        el("div", { class: "query-panel" },
          clips.clip({ files: gallery.pictures?.[query], id: gallery.ids[query], className: className(query), kinds: own.kinds }),
          el("p", { class: "id" }, gallery.ids[query]), gallery.labeled ? el("p", {}, el("span", { class: `badge ${become(query)}` }, become(query))) : ""),
        el("div", { class: "rows" }, shown.map(([number, stage]) => row(number, stage, query, position))));
    }

    const chosen = wanted();
    const pages = Math.max(1, Math.ceil(chosen.length / PAGE));
    own.page = Math.min(own.page, pages - 1);
    const turn = (step) => () => { own.page = Math.max(0, Math.min(pages - 1, own.page + step)); again(); };
    const random = () => { own.only = gallery.shown[Math.floor(Math.random() * gallery.shown.length)]; own.page = 0; again(); };
    const pager = () => el("div", { class: "pager" }, Page.button("← back", turn(-1), { disabled: own.page === 0 }),
      el("span", { class: "quiet" }, `page ${own.page + 1} of ${pages}`), Page.button("next →", turn(1), { disabled: own.page >= pages - 1 }));
    const present = [...new Set(gallery.shown.map((query) => gallery.labels[query]))].sort((a, b) => a - b);
    const search = el("input", { type: "search", placeholder: "substring of a name", value: own.text, "aria-label": "Search by name", onchange: () => change("text")(search.value) });
    const evaluation = gallery.stages[0].evaluation;
    const hasFlow = Boolean(gallery.pictures?.some(clips.moves));
    const kinds = clips.kindsOf(gallery.pictures);
    const noun = Page.data.report.data.some((dataset) => dataset.is_image) ? "images" : "videos";
    body.replaceChildren(
      el("p", { class: "quiet" }, `${filters.seedNote(plan)}${gallery.shown.length} of ${format.count(gallery.num_queries)} ${evaluation.query === "all" ? "" : `${evaluation.query} `}${noun}, each with its ${width} nearest ${evaluation.query === "all" ? "among" : "in"} ${evaluation.gallery}, with the cosine.${gallery.labeled ? " Green and ✓: the true class is the query's; red and ✗: it is not." : " These videos have no labels: judge for yourself."}`),
      el("div", { class: "controls", "data-filters": "neighbors" },
        filters.modalityChoice(gallery, () => Page.redraw("neighbors", "map", "errors")),
        filters.pairChoice(plan, gallery, () => Page.redraw("neighbors", "map", "errors")),
        gallery.labeled ? Page.choice("Class", [["", "all"], ...present.map((label) => [label, gallery.classes[label] || String(label)])], own.className, change("className")) : "",
        gallery.labeled ? Page.choice("Outcome", OUTCOMES, own.outcome, change("outcome")) : "",
        hasFlow ? Page.choice("Pictures", [["both", kinds.map(([, label]) => label).join(" and ")], ...kinds], own.kinds, change("kinds")) : "",
        el("label", { class: "choice" }, el("span", {}, "Name"), search),
        mine.some(([, stage]) => ["control", "baseline"].includes(stage.kind)) ? Page.tick("controls and baselines", own.all, change("all")) : "",
        Page.button("a random query", random),
        own.only !== null ? Page.button("all queries", change("only").bind(null, null)) : ""),
      hasFlow ? clips.wheel() : "",
      el("p", { role: "status", class: "count" }, `${chosen.length} ${chosen.length === 1 ? "query" : "queries"}`),
      pager(), el("div", { class: "cards" }, chosen.slice(own.page * PAGE, (own.page + 1) * PAGE).map(card)), chosen.length > PAGE ? pager() : "",
      Page.noisy());
  });
});
