// Thumbnails: loops of RGB and flow in a frame, with a sign for correct or wrong.
"use strict";
Page.clips = (() => {
  const { el } = Page;

  function picture(file, alt) {
    if (!file) return null;
    return Page.motion.watch(
      el("img", { src: `${Page.data.report.pictures}/${file}`, alt: alt, loading: "lazy", decoding: "async" }));
  }

  const KINDS = [["rgb", "RGB"], ["flow", "flow"], ["motion", "motion vectors"]]; // in the order of `files`, as in page_data.py

  // files: by kind, empty where there is none; kinds: the one to show, or "both" for all.
  function pictures(files, alt, kinds = "both") {
    const there = KINDS.map(([name, label], i) => (kinds === "both" || kinds === name) && picture(files?.[i], `${alt}, ${label}`)).filter(Boolean);
    if (!there.length && files?.[0]) there.push(picture(files[0], `${alt}, RGB`)); // it has no flow
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
    el("p", { class: "quiet" }, "Flow and motion vectors: hue is the direction of motion, saturation its speed; full color is the 99th percentile of the clip's speed."));

  // Whether one of the kinds is flow or motion vectors, and the kinds that at least one video has.
  const moves = (files) => Boolean(files?.[1] || files?.[2]);
  const kindsOf = (all) => KINDS.filter((_, i) => all?.some((files) => files[i]));

  return { clip, pictures, wheel, moves, kindsOf };
})();
