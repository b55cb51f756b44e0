// Clusters with their most typical videos, and the videos that are unlike all others.
"use strict";
Page.clusters = (() => {
  const { store } = Page;
  const { page, videos } = Page.data;
  const assigned = {}; // choice -> cluster per video

  const key = () => `clusters-${store.state.choice}`;
  const data = () => Page.data[key()] || null;
  const load = async () => (page.num_videos < 2 ? null : Page.load(key()));

  // Cluster of every video from 0; -1: none; null before the clusters are there.
  function of() {
    if (!data()) return null;
    if (!assigned[store.state.choice]) {
      const numbers = new Int16Array(videos.ids.length).fill(-1);
      data().clusters.forEach((one, number) => { for (const video of one.videos) numbers[video] = number; });
      assigned[store.state.choice] = Array.from(numbers);
    }
    return assigned[store.state.choice];
  }

  const names = () => (data()?.clusters || []).map((one, number) => `${number + 1} (${one.videos.length})`);
  return { load, data, of, names };
})();
Page.section("clusters", (body) => {
  const { el, store, cards } = Page;
  const { page } = Page.data;

  function row(one, number) {
    const dot = el("i", { class: "dot" });
    dot.style.background = Page.map.colorOf(number);
    return el("article", { class: "group" }, el("header", {}, dot, el("h3", {}, `Cluster ${number + 1}`),
      el("span", { class: "quiet" }, `${Page.format.count(one.videos.length)} videos · cohesion ${one.cohesion.toFixed(2)}`),
      Page.button("Select", () => { store.select(one.videos); }, { "aria-label": `Select cluster ${number + 1}` })),
      el("div", { class: "cards small" }, one.videos.slice(0, 6).map((video) => cards.card(video, { kinds: page.kinds.slice(0, 1) }))));
  }

  body.replaceChildren(el("p", { class: "quiet" }, "finding clusters …"));
  const choice = store.state.choice;
  Page.clusters.load().then((found) => {
    if (store.state.panel !== "clusters" || store.state.choice !== choice) return;
    if (!found) { body.replaceChildren(el("p", { class: "missing" }, "Clusters need at least two videos.")); return; }
    body.replaceChildren(
      el("header", { class: "panel-head" }, el("h2", {}, `${found.clusters.length} clusters by ${choice}`),
        el("p", { class: "quiet" }, `The most typical videos come first. Separation ${found.separation.toFixed(2)} (0: no clusters, 1: far apart).`)),
      ...cards.list(found.clusters.map((one, number) => [one, number]), ([one, number]) => row(one, number), { most: 12, className: "groups" }),
      el("h3", {}, "Unlike all others"), el("p", { class: "quiet" }, "With the mean similarity to the five nearest."),
      ...cards.list(found.outliers, ([video, similarity]) => cards.card(video, { kinds: page.kinds.slice(0, 1), head: el("span", { class: "score" }, similarity.toFixed(2)) }), { most: 12, className: "cards small" }));
  }).catch(Page.fail);
});
