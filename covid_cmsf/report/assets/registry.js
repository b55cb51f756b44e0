// The one global: data files call Report.accept, sections register themselves, everything else hangs off it.
"use strict";
window.Report = (() => {
  const data = {};
  const waiting = {};
  const sections = [];

  // Called by every file in data/.
  function accept(name, values) {
    data[name] = values;
    for (const resolve of waiting[name] || []) resolve(values);
    delete waiting[name];
  }

  // Adds data/<name>.js to the page; a page from disk may not fetch, but it may load scripts.
  function fetchScript(name) {
    return new Promise((resolve, reject) => {
      (waiting[name] ||= []).push(resolve);
      const tag = document.createElement("script");
      const fresh = location.protocol === "file:" ? "" : `?t=${Date.now()}`;
      tag.src = `data/${name}.js${fresh}`;
      tag.onload = () => tag.remove();
      tag.onerror = () => { tag.remove(); reject(new Error(`data/${name}.js could not be read`)); };
      document.head.append(tag);
    });
  }

  // The data of that name, loaded when it is first asked for.
  function load(name) {
    return name in data ? Promise.resolve(data[name]) : fetchScript(name);
  }

  // What the reader chose; it outlives a refresh.
  const state = { plan: 0 };

  function section(id, draw) {
    sections.push({ id, draw });
  }

  return { data, accept, load, fetchScript, state, sections, section };
})();
