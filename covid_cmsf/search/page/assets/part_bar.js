// Which part of the query is compared: two sliders on one bar, by mouse or with arrow keys. Only the server can do it.
"use strict";
Page.partBar = (() => {
  const { el, store } = Page;
  const { page, videos } = Page.data;

  const length = (query) => (query.upload === undefined ? { frames: videos.frames[query.video], fps: videos.fps[query.video] } : query);

  // As text: seconds, or frames where the frame rate is unknown.
  function told([start, end], fps) {
    return fps > 0 ? `${(start / fps).toFixed(1)}–${(end / fps).toFixed(1)} s` : `frames ${start}–${end}`;
  }

  // `changed` is called with the part, or null for the whole video, when a slider was moved.
  function make(query, changed) {
    const { frames, fps } = length(query);
    if (!page.live || !(frames > 1)) return "";
    const step = Math.max(1, Math.round((fps || 10) / 10));
    let part = query.part || [0, frames];
    const output = el("output", { class: "times" });
    const band = el("i");
    const sliders = ["start", "end"].map((which, i) => el("input", { type: "range", id: `part-${which}`, min: "0", max: String(frames), step: "1", "aria-label": `${which === "start" ? "Start" : "End"} of the part that is compared`,
      oninput: () => move(i), onchange: () => changed(whole() ? null : part), onkeydown: (event) => press(event, i) }));
    const reset = Page.button("Whole video", () => { part = [0, frames]; show(); changed(null); }, { id: "part-reset" });
    const whole = () => part[0] === 0 && part[1] === frames;

    function move(i) { // the two never cross
      const value = Number(sliders[i].value);
      part = i === 0 ? [Math.min(value, part[1] - 1), part[1]] : [part[0], Math.max(value, part[0] + 1)];
      show();
    }
    function press(event, i) { // a tenth of a second per key, a second with Shift
      const direction = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!direction || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      sliders[i].value = String(part[i] + direction * step * (event.shiftKey ? 10 : 1));
      move(i);
      changed(whole() ? null : part);
    }
    function show() {
      sliders.forEach((slider, i) => { slider.value = String(part[i]); slider.setAttribute("aria-valuetext", fps > 0 ? `${(part[i] / fps).toFixed(1)} seconds` : `frame ${part[i]}`); });
      band.style.left = `${(100 * part[0]) / frames}%`;
      band.style.right = `${100 - (100 * part[1]) / frames}%`;
      output.textContent = whole() ? "the whole video" : told(part, fps);
      reset.hidden = whole();
    }
    show();
    return el("div", { class: "part", role: "group", "aria-label": "Part that is compared" }, el("div", { class: "range" }, el("div", { class: "timeline", "aria-hidden": "true" }, band), sliders),
      el("div", { class: "line" }, el("span", { class: "quiet" }, "Compare"), output, reset));
  }

  return { make, told, length };
})();
