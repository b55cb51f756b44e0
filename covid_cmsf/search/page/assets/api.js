// Where answers come from: the server, or the files of a page that was opened from disk.
"use strict";
Page.api = (() => {
  const { page } = Page.data;
  const KEY = `covid-cmsf ${location.pathname}`;
  const thousandth = (value) => (value === null ? null : value / 1000);

  async function answer(path, options) {
    const response = await fetch(path, options);
    const values = await response.json();
    if (!response.ok) throw new Error(values.error || response.statusText);
    return values;
  }
  const send = (path, body, headers = {}) => answer(path, { method: "POST", body, headers: { "X-Covid-CMSF": "page", ...headers } });

  // The nearest videos: {videos, scores, starts, by: {modality: scores}, ranks: {modality: ranks}}.
  async function search(query, choice) {
    if (page.live) {
      const which = query.upload ? `upload=${encodeURIComponent(query.upload)}` : `video=${query.video}`;
      const part = query.part ? `&start=${query.part[0]}&end=${query.part[1]}` : "";
      return answer(`api/search?by=${encodeURIComponent(choice)}&${which}${part}`);
    }
    const rows = await Page.load(`neighbors-${choice}-${Math.floor(query.video / page.shard)}`);
    const found = rows[query.video % page.shard];
    const by = Object.fromEntries(Object.entries(found.by).map(([name, values]) => [name, values.map(thousandth)]));
    return { ...found, scores: found.scores.map(thousandth), by };
  }

  // The address of a loop, or null. Only the server can show any window; files show the middle of the video.
  async function picture(query, kind, start = null, span = 32) {
    if (!page.kinds.includes(kind)) return null;
    if (query.upload) return `api/preview?upload=${encodeURIComponent(query.upload)}&kind=${kind}`;
    if (page.live) return `api/preview?video=${query.video}&kind=${kind}${start === null ? "" : `&start=${start}&span=${span}`}`;
    const name = (await Page.load(`pictures-${kind}`))[query.video];
    return name ? `${page.pictures}/${name}` : null;
  }

  const upload = (file) => send("api/upload", file, { "X-File-Name": encodeURIComponent(file.name) });

  // Without a server labels and decisions are kept by the browser, as long as it keeps them; CSV files can be saved.
  function remember(kind, values) {
    try { localStorage.setItem(`${KEY} ${kind}`, JSON.stringify(values)); return "this browser"; } catch { return null; }
  }
  function remembered(kind, empty) {
    try { return JSON.parse(localStorage.getItem(`${KEY} ${kind}`)) || empty; } catch { return empty; }
  }

  async function saved() {
    if (page.live) return Page.fetchScript("saved");
    return { labels: remembered("labels", {}), decisions: remembered("decisions", []) };
  }

  // Returns where they were saved.
  async function saveLabels(changes, all) {
    return page.live ? (await send("api/labels", JSON.stringify(changes))).file : remember("labels", all);
  }
  async function saveDecision(first, second, decision, all) {
    return page.live ? (await send("api/decision", JSON.stringify({ first, second, decision }))).file : remember("decisions", all);
  }

  // {state: new, running, done or failed, done, total, pairs}
  async function copies({ start = false } = {}) {
    if (page.live) return start ? send("api/copies", "{}") : answer("api/copies");
    return { state: "done", pairs: await Page.load("copies") };
  }

  return { search, picture, upload, saved, saveLabels, saveDecision, copies };
})();
