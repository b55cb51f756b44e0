// Formatting of numbers and names.
"use strict";
Page.format = (() => {
  const number = (value, digits = 1) => (value === null || value === undefined ? "" : value.toFixed(digits));
  const percent = (mean, spread) => number(mean) + (spread === null || spread === undefined ? "" : ` ± ${number(spread)}`);

  function duration(seconds) {
    if (seconds === null || seconds === undefined) return "";
    if (seconds < 90) return `${seconds.toFixed(0)} s`;
    return seconds < 7200 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
  }

  function bytes(count) {
    if (count === undefined || count === null) return "";
    return count < 1e6 ? `${(count / 1e3).toFixed(0)} kB` : count < 1e9 ? `${(count / 1e6).toFixed(1)} MB` : `${(count / 1e9).toFixed(2)} GB`;
  }

  // Plotly interprets some HTML, and formulas between dollar signs: escape both.
  const literal = (text) => String(text ?? "").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  const short = (text, most = 28) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
  const count = (value) => value.toLocaleString("en");
  return { number, percent, duration, bytes, literal, short, count };
})();
