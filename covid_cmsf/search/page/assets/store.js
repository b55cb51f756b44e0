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
  function writeAddress({ replace = false } = {}) {
    const parts = new URLSearchParams();
    if (state.query && state.query.video !== undefined) {
      parts.set("video", videos.ids[state.query.video]);
      if (state.query.part) parts.set("frames", state.query.part.join("-"));
    }
    parts.set("by", state.choice);
    if (state.panel !== "neighbors") parts.set("panel", state.panel);
    const hash = `#${parts}`;
    if (hash !== location.hash) history[replace ? "replaceState" : "pushState"](null, "", hash);
  }

  function readAddress() {
    const parts = new URLSearchParams(location.hash.slice(1));
    if (page.choices.includes(parts.get("by"))) state.choice = parts.get("by");
    if (numbers.has(parts.get("video"))) {
      const video = numbers.get(parts.get("video"));
      const part = (parts.get("frames") || "").split("-").map(Number);
      const possible = page.live && part.length === 2 && part.every(Number.isInteger) && part[0] >= 0 && part[0] < part[1] && part[1] <= videos.frames[video];
      state.query = possible ? { video, part } : { video };
    }
    else if (state.query?.video !== undefined) state.query = null;
    state.panel = parts.get("panel") || "neighbors";
  }

  function ask(query) { // {video} or {upload, name, seconds, frames, fps}
    Object.assign(state, { query, panel: "neighbors" });
    writeAddress();
    emit("query");
    emit("panel");
  }

  // Only a part of the query: frames [start, end), or null for all of it. The panel searches again by itself.
  function limit(part) {
    state.query = { ...state.query, part };
    writeAddress({ replace: true });
    emit("part");
  }

  function choose(choice) {
    state.choice = choice;
    writeAddress();
    emit("choice");
    emit("query");
    if (["neighbors", "clusters"].includes(state.panel)) emit("panel"); // the others do not depend on the choice
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
  return { state, on, emit, ask, limit, choose, show, select, toggle, times, seconds, className, numbers };
})();
