// Light or dark theme: the system's, until the button is pressed; the choice is stored if possible.
"use strict";
Page.theme = (() => {
  const KEY = "covid-cmsf-theme";
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const listeners = [];

  function remembered() {
    try { return localStorage.getItem(KEY); } catch { return null; }
  }

  function remember(name) {
    try { localStorage.setItem(KEY, name); } catch { /* no storage in private windows */ }
  }

  function current() {
    return document.documentElement.dataset.theme || (dark.matches ? "dark" : "light");
  }

  function changed() {
    for (const listener of listeners) listener(current());
  }

  function toggle() {
    const name = current() === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = name;
    remember(name);
    changed();
  }

  if (remembered()) document.documentElement.dataset.theme = remembered();
  dark.addEventListener("change", changed);
  return { current, toggle, onChange: (listener) => listeners.push(listener) };
})();
