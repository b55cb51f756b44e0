// Data: counts, samples and failures of the clips.
"use strict";
Page.section("data", (body) => {
  const { el, format, charts, clips } = Page;

  function counts(dataset) {
    const splits = Object.entries(dataset.subsets || {});
    const subsets = [...new Set(splits.flatMap(([, own]) => Object.keys(own)))];
    return splits.length ? Page.plain(["Split", ...subsets], splits.map(([name, own]) => [name, ...subsets.map((subset) => format.count(own[subset] || 0))])) : "";
  }

  function numbers(dataset) {
    const size = Object.values(dataset.bytes || {}).reduce((a, b) => a + b, 0);
    const made = dataset.store_info;
    const all = [["videos", format.count(dataset.num_videos)], ["sources", format.count(dataset.num_sources)], ["classes", Object.keys(dataset.classes || {}).length], ["frames", format.count(dataset.num_frames)],
      dataset.hours !== undefined && ["hours", format.number(dataset.hours, 2)], size && ["on disk", format.bytes(size)],
      dataset.frame_sizes && ["frame size", Object.keys(dataset.frame_sizes).slice(0, 3).join(", ")],
      dataset.flow && ["mean motion", `${format.number(dataset.flow.mean_magnitude_px, 2)} px`], dataset.flow && ["at the bound", `${format.number(100 * dataset.flow.clipped_fraction, 2)}%`],
      made?.flow && ["flow by", `${made.flow.algorithm} (${made.flow.backend})`], dataset.num_failures !== undefined && ["failures", format.count(dataset.num_failures)]];
    return el("dl", { class: "numbers" }, all.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
  }

  function chart(dataset) {
    const names = Object.keys(dataset.classes);
    const split = Object.keys(dataset.subsets)[0];
    const subsets = Object.keys(dataset.subsets[split]);
    const colors = { train: "#4477aa", test: "#cc8800", val: "#228833" };
    return { traces: subsets.map((subset) => ({ type: "bar", name: format.literal(subset), x: names.map((name) => format.literal(name || "unlabeled")), y: names.map((name) => dataset.classes[name][split]?.[subset] || 0), marker: { color: colors[subset] || "#888888" } })),
      layout: { barmode: "stack", legend: { orientation: "h", y: 1, yanchor: "bottom" }, xaxis: { tickangle: -60, tickfont: { size: names.length > 40 ? 8 : 11 } }, yaxis: { title: `videos, split ${format.literal(split)}` } } };
  }

  body.replaceChildren(...Page.data.report.data.map((dataset, number) => {
    if (dataset.num_videos === undefined) return Page.missing(`The clips at ${dataset.address} cannot be opened: ${dataset.problem}. Give their new path: `, Page.data.report.command_of_clips);
    const container = charts.container(`classes-${number}`, 320, "Videos by class");
    const drawable = Object.keys(dataset.subsets || {}).length && Object.keys(dataset.classes || {}).length;
    if (drawable) Page.whenNear(container, () => charts.draw(container, () => chart(dataset)));
    const flow = dataset.samples.some((sample) => clips.moves(sample.pictures));
    const failures = dataset.failures || [];
    return el("div", { class: "store" }, el("h3", { class: "id" }, dataset.address), dataset.problem ? Page.missing(`${dataset.problem}. To look for what is wrong: `, dataset.check) : "", numbers(dataset),
      counts(dataset), drawable ? el("article", { class: "card" }, el("h3", {}, Page.term("Videos by class")), container) : "",
      el("h3", {}, dataset.is_image ? "Samples" : flow ? "Samples of frames and flow" : "Samples of frames"), flow ? clips.wheel() : "",
      el("div", { class: "samples" }, dataset.samples.map((sample) => clips.clip({ files: sample.pictures, id: sample.id, className: sample.class || "unlabeled" }))),
      el("h3", {}, "Failures"),
      failures.length ? Page.plain(["Video", Page.term("Stage", "Step"), "Reason"], failures.map((one) => [one.video_id, one.stage, one.reason]), { class: "failures" }) : el("p", { class: "quiet" }, dataset.store_info ? "No video failed." : "This format has no list of failures."),
      dataset.num_failures > failures.length ? el("p", { class: "quiet" }, `${format.count(dataset.num_failures - failures.length)} more are in failures.csv.`) : "");
  }));
  if (!Page.data.report.data.length) body.replaceChildren(Page.missing("No run records the clips it was trained on (config.yaml). To go on: ", Page.data.report.plans[0].go_on));
});
