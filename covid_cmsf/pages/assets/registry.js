// The only global object: data files call Page.accept, sections register themselves, modules are attributes.
"use strict";
window.Page = (() => {
  const data = {};
  const waiting = {};
  const sections = [];

  // Called by every file in data/.
  function accept(name, values) {
    data[name] = values;
    for (const resolve of waiting[name] || []) resolve(values);
    delete waiting[name];
  }

  // Add data/<name>.js to the page; a page opened from disk can load scripts but cannot fetch files.
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

  // Load data on first use.
  function load(name) {
    return name in data ? Promise.resolve(data[name]) : fetchScript(name);
  }

  // Selections of the reader; they survive a refresh.
  const state = {};

  function section(id, draw) {
    sections.push({ id, draw });
  }

  return { data, accept, load, fetchScript, state, sections, section };
})();
