// Plotly with the fonts and colors of the page, in both themes. It is large, so it is loaded after the page.
"use strict";
Page.charts = (() => {
  const drawn = new Map(); // element -> function that makes its chart, for a change of theme
  const library = new Promise((resolve, reject) => {
    const tag = document.createElement("script");
    tag.src = "assets/plotly-cartesian.min.js";
    tag.onload = () => resolve(window.Plotly);
    tag.onerror = () => reject(new Error("assets/plotly-cartesian.min.js could not be read"));
    document.head.append(tag);
  });

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

  function axis(own = {}) {
    const { title, ...others } = own;
    return {
      gridcolor: color("line"), zerotickcolor: color("line"),
      automargin: true, ...others, title: { text: title || "", font: { size: 12 }, standoff: 8 },
    };
  }

  function layout(own) {
    const { xaxis, yaxis, ...others } = own;
    return {
      margin: { l: 8, r: 12, t: 8, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: color("text") },
      hoverlabel: { bgcolor: color("card"), bordercolor: color("line"), font: { color: color("text"), size: 12 } },
      legend: { orientation: "h", y: -0.2 }, modebar: { bgcolor: "rgba(0,0,0,0)", color: color("faint"), activecolor: color("quiet") },
      uirevision: "same", // a refresh keeps zoom and toggles
      ...others, xaxis: axis(xaxis), yaxis: axis(yaxis),
    };
  }

  const config = { responsive: true, displaylogo: false, scrollZoom: false,
    modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"], showSendToCloud: false, plotlyServerURL: "" };

  // Charts are drawn one after the other with a pause in between, so that the page stays responsive.
  let queue = library;
  const pause = () => new Promise((resolve) => setTimeout(resolve, 0));

  // `make()` returns {traces, layout, hover, leave}; it is called again when the theme changes.
  function draw(element, make) {
    drawn.set(element, make);
    queue = queue.then(pause).then(() => drawNow(element, make)).catch((error) => console.error(error));
    return queue;
  }

  async function drawNow(element, make) {
    const plotly = await library;
    if (drawn.get(element) !== make || !element.isConnected) return;
    const wanted = make();
    await plotly.react(element, wanted.traces, layout(wanted.layout || {}), config);
    element.removeAllListeners?.("plotly_hover");
    element.removeAllListeners?.("plotly_unhover");
    if (wanted.hover) element.on("plotly_hover", wanted.hover);
    if (wanted.leave) element.on("plotly_unhover", wanted.leave);
    element.dataset.drawn = "yes";
  }

  Page.theme.onChange(() => {
    for (const [element, make] of drawn) {
      if (element.isConnected) draw(element, make);
      else drawn.delete(element);
    }
  });

  // The element of a chart, kept by name: a redraw keeps the zoom.
  const kept = {};
  function container(name, height, label) {
    kept[name] ||= Page.el("div", { class: "chart", role: "img" });
    kept[name].style.height = `${height}px`;
    kept[name].setAttribute("aria-label", label);
    kept[name].dataset.chart = name;
    return kept[name];
  }

  return { draw, container, color, library };
})();
