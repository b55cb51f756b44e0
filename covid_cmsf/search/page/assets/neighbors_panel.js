// The query and its nearest videos.
"use strict";
Page.section("neighbors", (body) => {
  const { el, store, cards } = Page;
  const { page, videos } = Page.data;
  const { choice } = store.state;
  let { query } = store.state;

  // Nothing asked yet: a typical video of each cluster to begin with.
  async function begin() {
    const ways = [page.max_upload ? "Type a name, drop a video file, or click a point of the map." : "Type a name, or click a point of the map."];
    const welcome = el("div", { class: "empty" }, el("h2", {}, "Which videos are alike?"), el("p", { class: "quiet" }, ways));
    body.replaceChildren(welcome);
    await Page.clusters.load();
    if (!welcome.isConnected) return; // something else was drawn meanwhile
    const typical = (Page.clusters.data()?.clusters || []).slice(0, 12);
    if (typical.length) body.append(el("h3", {}, "Or begin with a typical video of each cluster"), el("div", { class: "cards" }, typical.map((one, number) =>
      cards.card(one.videos[0], { head: el("span", { class: "score" }, `cluster ${number + 1}`) }))));
  }

  function head() {
    const isFile = query.upload !== undefined;
    const title = isFile ? query.name : videos.ids[query.video];
    const length = isFile ? query.seconds : store.seconds(query.video);
    const label = isFile ? "" : store.state.labels.get(query.video) || store.className(query.video);
    return el("header", { class: "query" }, loops(), el("div", {},
      el("h2", {}, title), el("p", { class: "quiet" }, [isFile ? "a file, not in the index" : "", length ? `${length.toFixed(1)} s` : "", label].filter(Boolean).join(" · ")),
      Page.partBar.make(query, limit), el("p", { id: "compared", class: "quiet" }),
      el("div", { class: "actions" },
        Page.button("Select these", () => { store.select(store.state.results?.videos || [], { add: true }); }, { title: "Add the results to the selection" }),
        Page.button("Save as CSV", () => saveResults(title)))));
  }

  function loops() { // of the part, if there is one
    const title = query.upload === undefined ? videos.ids[query.video] : query.name;
    return cards.loops(query, title, query.part ? { start: query.part[0], span: query.part[1] - query.part[0] } : {});
  }

  function limit(part) {
    store.limit(part);
    query = store.state.query;
    body.querySelector(".query .loops").replaceWith(loops());
    find(body.querySelector(".results")).catch(Page.fail);
  }

  function saveResults(title) {
    const found = store.state.results, span = page.spans[store.state.choice];
    const time = (video, frame) => (videos.fps[video] > 0 ? (frame / videos.fps[video]).toFixed(2) : frame);
    const names = page.modalities.filter((one) => found.by[one]);
    const part = query.part ? ` ${Page.partBar.told(query.part, Page.partBar.length(query).fps)}` : "";
    Page.csv.save(`neighbors of ${title}${part}.csv`.replace(/[/\\]/g, "_"), ["video", "score", "start", "end", ...names], found.videos.map((video, i) =>
      [videos.ids[video], found.scores[i].toFixed(4), time(video, found.starts[i]), time(video, found.starts[i] + span), ...names.map((one) => found.by[one][i]?.toFixed(4))]));
  }

  async function results() {
    const list = el("div", { class: "cards results" }, el("p", { class: "quiet" }, "searching …"));
    body.replaceChildren(head(), list);
    await find(list);
  }

  // Windows were embedded before, so a part is compared by those that begin in it: say which.
  function compared(found) {
    const starts = query.part ? found.windows || [] : [];
    const { fps } = Page.partBar.length(query);
    return starts.length ? `by ${starts.length === 1 ? "the window" : `${starts.length} windows`} ${starts.slice(0, 4).map((start) => Page.partBar.told([start, start + page.spans[choice]], fps)).join(", ")}${starts.length > 4 ? ", …" : ""}` : "";
  }

  async function find(list) {
    delete body.dataset.shown;
    const asked = query;
    const found = await Page.api.search(asked, choice);
    if (!list.isConnected || query !== asked) return; // the panel was drawn anew, or another part was asked for
    body.querySelector("#compared").textContent = compared(found);
    store.state.results = found;
    const span = page.spans[choice];
    list.replaceChildren(...found.videos.map((video, i) => cards.card(video, { start: found.starts[i], span,
      head: el("span", { class: "score", title: `similarity by ${choice}` }, found.scores[i].toFixed(2)), extra: cards.foundBy(found, i) })));
    if (!found.videos.length) list.replaceChildren(el("p", { class: "missing" }, `This video has no windows of ${choice}.`));
    body.dataset.shown = `${query.upload ?? query.video} ${choice}${query.part ? ` ${query.part.join("-")}` : ""}`;
    store.emit("results");
  }

  delete body.dataset.shown;
  if (query) results().catch(Page.fail);
  else { store.state.results = null; begin().catch(Page.fail); }
});
