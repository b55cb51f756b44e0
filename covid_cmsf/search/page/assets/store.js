// The state of the page: query, choice, panel, selection, labels, decisions. Changes are told to listeners by name.
"use strict";
Page.store = (() => {
  const { page, videos } = Page.data;
  const listeners = {};
  const state = {
    choice: page.choices[0], query: null, panel: "neighbors", results: null,
    selection: new Set(), labels: new Map(), decisions: new Map(), color: videos.class_names.length ? "class" : "cluster",
  };
  const numbers = new Map(videos.ids.map((id, number) => [id, number]));

  const on = (name, listener) => (listeners[name] ||= []).push(listener);
  const emit = (name) => { for (const listener of listeners[name] || []) listener(); };

  // Query, choice and panel are in the address, so that "back" and bookmarks work.
  function writeAddress() {
    const parts = new URLSearchParams();
    if (state.query && state.query.video !== undefined) parts.set("video", videos.ids[state.query.video]);
    parts.set("by", state.choice);
    if (state.panel !== "neighbors") parts.set("panel", state.panel);
    const hash = `#${parts}`;
    if (hash !== location.hash) history.pushState(null, "", hash);
  }

  function readAddress() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (page.choices.includes(parts.get("by"))) state.choice = parts.get("by");
    if (numbers.has(parts.get("video"))) state.query = { video: numbers.get(parts.get("video")) };
    else if (state.query?.video !== undefined) state.query = null;
    state.panel = parts.get("panel") || "neighbors";
  }

  function ask(query) { // {video} or {upload, name, seconds}
    Object.assign(state, { query, panel: "neighbors" });
    writeAddress();
    emit("query");
    emit("panel");
  }

  function choose(choice) {
    state.choice = choice;
    writeAddress();
    emit("choice");
    emit("query");
  }

  function show(panel) {
    state.panel = panel;
    writeAddress();
    emit("panel");
  }

  function select(chosen, { add = false } = {}) {
    state.selection = new Set(add ? [...state.selection, ...chosen] : chosen);
    emit("selection");
  }

  function toggle(video) {
    if (!state.selection.delete(video)) state.selection.add(video);
    emit("selection");
  }

  // Times: seconds, or frames where the frame rate is unknown.
  function times(video, start, span) {
    const [fps, frames] = [videos.fps[video], videos.frames[video]];
    const end = frames ? Math.min(frames, start + span) : start + span;
    return fps > 0 ? `${(start / fps).toFixed(1)}–${(end / fps).toFixed(1)} s` : `frames ${start}–${end}`;
  }
  const seconds = (video) => (videos.fps[video] > 0 && videos.frames[video] ? videos.frames[video] / videos.fps[video] : null);
  const className = (video) => (videos.classes.length ? videos.class_names[videos.classes[video]] || "" : "");

  window.addEventListener("popstate", () => { readAddress(); emit("choice"); emit("query"); emit("panel"); });
  readAddress();
  return { state, on, emit, ask, choose, show, select, toggle, times, seconds, className, numbers };
})();
