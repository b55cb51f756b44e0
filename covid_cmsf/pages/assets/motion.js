// Play or pause all loops: as the system's setting for reduced motion, until the button is pressed.
"use strict";
Page.motion = (() => {
  const reduced = window.matchMedia("(prefers-reduced-motion: reduce)");
  const moving = new WeakMap(); // still canvas -> the loop that it replaces
  let still = reduced.matches;

  function hold(loop) {
    if (!loop.complete || !loop.naturalWidth || !loop.parentNode) return;
    const canvas = Page.el("canvas", { class: "still", role: "img", "aria-label": loop.alt });
    [canvas.width, canvas.height] = [loop.naturalWidth, loop.naturalHeight];
    canvas.getContext("2d").drawImage(loop, 0, 0);
    moving.set(canvas, loop);
    loop.replaceWith(canvas);
  }

  function changed() {
    for (const loop of document.querySelectorAll("img.loop")) if (still) hold(loop);
    for (const canvas of document.querySelectorAll("canvas.still")) if (!still) canvas.replaceWith(moving.get(canvas));
    const button = document.getElementById("motion");
    button.textContent = still ? "▶" : "❚❚";
    button.setAttribute("aria-label", still ? "Play the clips" : "Pause the clips");
    button.title = button.getAttribute("aria-label");
  }

  // Register a new thumbnail; it is paused after loading if loops are paused.
  function watch(loop) {
    loop.classList.add("loop");
    loop.addEventListener("load", () => { if (still) hold(loop); });
    return loop;
  }

  function start() {
    document.getElementById("motion").addEventListener("click", () => { still = !still; changed(); });
    reduced.addEventListener("change", () => { still = reduced.matches; changed(); });
    changed();
  }

  return { watch, start };
})();
