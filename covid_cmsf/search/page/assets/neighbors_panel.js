// The query and its nearest videos.
"use strict";
Page.section("neighbors", (body) => {
  const { el, store, cards } = Page;
  const { page, videos } = Page.data;
  const { query, choice } = store.state;

  // Nothing asked yet: a typical video of each cluster to begin with.
  async function begin() {
    const ways = [page.max_upload ? "Type a name, drop a video file, or click a point of the map." : "Type a name, or click a point of the map."];
    body.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "Which videos are alike?"), el("p", { class: "quiet" }, ways)));
    await Page.clusters.load();
    if (store.state.query || store.state.panel !== "neighbors") return;
    const typical = (Page.clusters.data()?.clusters || []).slice(0, 12);
    if (typical.length) body.append(el("h3", {}, "Or begin with a typical video of each cluster"), el("div", { class: "cards" }, typical.map((one, number) =>
      cards.card(one.videos[0], { head: el("span", { class: "score" }, `cluster ${number + 1}`) }))));
  }

  function head() {
    const isFile = query.upload !== undefined;
    const title = isFile ? query.name : videos.ids[query.video];
    const length = isFile ? query.seconds : store.seconds(query.video);
    const label = isFile ? "" : store.state.labels.get(query.video) || store.className(query.video);
    return el("header", { class: "query" }, cards.loops(query, title), el("div", {},
      el("h2", {}, title), el("p", { class: "quiet" }, [isFile ? "a file, not in the index" : "", length ? `${length.toFixed(1)} s` : "", label].filter(Boolean).join(" · ")),
      el("div", { class: "actions" },
        Page.button("Select these", () => { store.select(store.state.results?.videos || [], { add: true }); }, { title: "Add the results to the selection" }),
        Page.button("Save as CSV", () => saveResults(title)))));
  }

  function saveResults(title) {
    const found = store.state.results, span = page.spans[store.state.choice];
    const time = (video, frame) => (videos.fps[video] > 0 ? (frame / videos.fps[video]).toFixed(2) : frame);
    const names = page.modalities.filter((one) => found.by[one]);
    Page.csv.save(`neighbors of ${title}.csv`.replace(/[/\\]/g, "_"), ["video", "score", "start", "end", ...names], found.videos.map((video, i) =>
      [videos.ids[video], found.scores[i].toFixed(4), time(video, found.starts[i]), time(video, found.starts[i] + span), ...names.map((one) => found.by[one][i]?.toFixed(4))]));
  }

  async function results() {
    const list = el("div", { class: "cards results" }, el("p", { class: "quiet" }, "searching …"));
    body.replaceChildren(head(), list);
    const asked = { query, choice };
    const found = await Page.api.search(query, choice);
    if (store.state.query !== asked.query || store.state.choice !== asked.choice) return;
    store.state.results = found;
    const span = page.spans[choice];
    list.replaceChildren(...found.videos.map((video, i) => cards.card(video, { start: found.starts[i], span,
      head: el("span", { class: "score", title: `similarity by ${choice}` }, found.scores[i].toFixed(2)), extra: cards.foundBy(found, i) })));
    if (!found.videos.length) list.replaceChildren(el("p", { class: "missing" }, `This video has no windows of ${choice}.`));
    body.dataset.shown = `${query.upload ?? query.video} ${choice}`;
    store.emit("results");
  }

  delete body.dataset.shown;
  if (query) results().catch(Page.fail);
  else { store.state.results = null; begin().catch(Page.fail); }
});
