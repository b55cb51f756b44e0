// With `covid-cmsf report --serve`: check for new data every few seconds, and redraw.
"use strict";
Report.live = (() => {
  let version = null;
  const status = () => document.getElementById("live");

  async function refresh() {
    const names = Object.keys(Report.data).filter((name) => name !== "version");
    await Promise.allSettled(names.map(Report.fetchScript));
    Report.drawAll();
  }

  async function look() {
    try {
      const found = await Report.fetchScript("version");
      if (version !== null && found !== version) await refresh();
      version = found;
      status().textContent = Report.data.report.live ? "● following" : "";
    } catch {
      status().textContent = "○ no connection to the server";
    }
    if (Report.data.report.live) setTimeout(look, 1000 * Report.data.report.live);
  }

  function start() {
    if (Report.data.report.live && location.protocol.startsWith("http")) look();
  }

  return { start };
})();
