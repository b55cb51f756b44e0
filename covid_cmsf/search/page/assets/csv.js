// CSV files (RFC 4180), made in the browser.
"use strict";
Page.csv = (() => {
  // As covid_cmsf.files.escape_cell: a spreadsheet must not take a name for a formula.
  const escape = (value) => (typeof value === "string" && /^'*[=+\-@]/.test(value) ? `'${value}` : value);
  const field = (value) => {
    const text = String(escape(value) ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
  };
  const text = (columns, rows) => [columns, ...rows].map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";

  function save(name, columns, rows) {
    const address = URL.createObjectURL(new Blob([text(columns, rows)], { type: "text/csv" }));
    const link = Page.el("a", { href: address, download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // A list of videos with all that is known about them.
  function saveVideos(name, chosen) {
    const { state, seconds, className } = Page.store;
    const { ids, class_names } = Page.data.videos;
    const cluster = Page.clusters.of();
    const columns = ["video", "seconds", ...(class_names.length ? ["class"] : []), "label", "cluster"];
    save(name, columns, chosen.map((video) => [ids[video], seconds(video)?.toFixed(2), ...(class_names.length ? [className(video)] : []),
      state.labels.get(video), cluster ? cluster[video] + 1 || "" : ""]));
  }

  return { text, save, saveVideos };
})();
