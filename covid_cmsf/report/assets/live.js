// With `covid-cmsf report --serve`: check for new data every few seconds, and redraw.
"use strict";
Page.live = (() => {
  let version = null;
  const status = () => document.getElementById("live");

  async function refresh() {
    const names = Object.keys(Page.data).filter((name) => name !== "version");
    await Promise.allSettled(names.map(Page.fetchScript));
    Page.drawAll();
  }

  async function look() {
    try {
      const found = await Page.fetchScript("version");
      if (version !== null && found !== version) await refresh();
      version = found;
      status().textContent = Page.data.report.live ? "● following" : "";
    } catch {
      status().textContent = "○ no connection to the server";
    }
    if (Page.data.report.live) setTimeout(look, 1000 * Page.data.report.live);
  }

  function start() {
    if (Page.data.report.live && location.protocol.startsWith("http")) look();
  }

  return { start };
})();
