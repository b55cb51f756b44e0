// Thumbnails: loops of RGB and flow in a frame, with a sign for correct or wrong.
"use strict";
Page.clips = (() => {
  const { el } = Page;

  function picture(file, alt) {
    if (!file) return null;
    return Page.motion.watch(
      el("img", { src: `${Page.data.report.pictures}/${file}`, alt: alt, loading: "lazy", decoding: "async" }));
  }

  // files: [rgb, flow]; kinds: which of them to show.
  function pictures(files, alt, kinds = "both") {
    const shown = [kinds !== "flow" && picture(files?.[0], `${alt}, RGB`), kinds !== "rgb" && picture(files?.[1], `${alt}, flow`)];
    const there = shown.filter(Boolean);
    if (!there.length && files?.[0]) there.push(picture(files[0], `${alt}, RGB`)); // there is no flow of it
    return there.length ? there : [el("span", { class: "no-picture" }, "no picture")];
  }

  function clip({ files, id, className, right = null, note = "", kinds = "both" }) {
    const verdict = right === null ? "" : right ? "right" : "wrong";
    const sign = right === null ? null : el("span", { class: "sign", "aria-label": verdict }, right ? "✓" : "✗");
    return el("figure", { class: `clip ${verdict}`, title: `${id}\n${className}` },
      el("div", { class: "frame" }, pictures(files, `${id} (${className})`, kinds), sign),
      el("figcaption", {}, el("span", { class: "class-name" }, className), note ? el("span", { class: "quiet" }, note) : null));
  }

  // Legend of flow.
  const wheel = () => el("div", { class: "wheel" },
    el("img", { src: "assets/wheel.png", alt: "Color wheel: the color at a point is that of motion from the center to it", width: 48, height: 48 }),
    el("p", { class: "quiet" }, "Flow: hue is the direction of motion, saturation its speed; full color is the 99th percentile of the clip's speed."));

  return { clip, pictures, wheel };
})();
