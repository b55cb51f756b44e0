// Data: what the clips are, how they look, and which videos were set aside.
"use strict";
Report.section("data", (body) => {
  const { el, words, charts, clips } = Report;

  function counts(facts) {
    const splits = Object.entries(facts.parts || {});
    const parts = [...new Set(splits.flatMap(([, own]) => Object.keys(own)))];
    return splits.length ? Report.plain(["Split", ...parts], splits.map(([name, own]) => [name, ...parts.map((part) => words.count(own[part] || 0))])) : "";
  }

  function numbers(facts) {
    const size = Object.values(facts.bytes || {}).reduce((a, b) => a + b, 0);
    const made = facts.made;
    const all = [["videos", words.count(facts.num_videos)], ["sources", words.count(facts.num_sources)], ["classes", Object.keys(facts.classes || {}).length], ["frames", words.count(facts.num_frames)],
      facts.hours !== undefined && ["hours", words.number(facts.hours, 2)], size && ["on disk", words.bytes(size)],
      facts.frame_sizes && ["frame size", Object.keys(facts.frame_sizes).slice(0, 3).join(", ")],
      facts.flow && ["mean motion", `${words.number(facts.flow.mean_magnitude_px, 2)} px`], facts.flow && ["at the bound", `${words.number(100 * facts.flow.clipped_share, 2)}%`],
      made?.flow && ["flow by", `${made.flow.algorithm} (${made.flow.backend})`], facts.num_failures !== undefined && ["failures", words.count(facts.num_failures)]];
    return el("dl", { class: "numbers" }, all.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))));
  }

  function chart(facts) {
    const names = Object.keys(facts.classes);
    const split = Object.keys(facts.parts)[0];
    const parts = Object.keys(facts.parts[split]);
    const colors = { train: "#4477aa", test: "#cc8800", val: "#228833" };
    return { traces: parts.map((part) => ({ type: "bar", name: words.literal(part), x: names.map((name) => words.literal(name || "unlabeled")), y: names.map((name) => facts.classes[name][split]?.[part] || 0), marker: { color: colors[part] || "#888888" } })),
      layout: { barmode: "stack", legend: { orientation: "h", y: 1, yanchor: "bottom" }, xaxis: { tickangle: -60, tickfont: { size: names.length > 40 ? 8 : 11 } }, yaxis: { title: `videos, split ${words.literal(split)}` } } };
  }

  body.replaceChildren(...Report.data.report.data.map((facts, number) => {
    if (facts.num_videos === undefined) return Report.missing(`The clips at ${facts.address} cannot be reached: ${facts.problem}. Say where they are now: `, "covid-cmsf report … --clips CLIPS");
    const place = charts.place(`classes-${number}`, 320, "Videos by class");
    const drawable = Object.keys(facts.parts || {}).length && Object.keys(facts.classes || {}).length;
    if (drawable) Report.whenNear(place, () => charts.draw(place, () => chart(facts)));
    const flow = facts.samples.some((sample) => sample.pictures[1]);
    const failures = facts.failures || [];
    return el("div", { class: "store" }, el("h3", { class: "id" }, facts.address), facts.problem ? Report.missing(facts.problem) : "", numbers(facts),
      counts(facts), drawable ? el("article", { class: "card" }, el("h3", {}, "Videos by class"), place) : "",
      el("h3", {}, facts.still ? "Samples" : flow ? "Samples of frames and flow" : "Samples of frames"), flow ? clips.wheel() : "",
      el("div", { class: "samples" }, facts.samples.map((sample) => clips.clip({ files: sample.pictures, id: sample.id, className: sample.class || "unlabeled" }))),
      el("h3", {}, "Failures"),
      failures.length ? Report.plain(["Video", "Stage", "Reason"], failures.map((one) => [one.video_id, one.stage, one.reason]), { class: "failures" }) : el("p", { class: "quiet" }, facts.made ? "No video was set aside." : "Such collections keep no list of failures."),
      facts.num_failures > failures.length ? el("p", { class: "quiet" }, `${words.count(facts.num_failures - failures.length)} more are in failures.csv.`) : "");
  }));
  if (!Report.data.report.data.length) body.replaceChildren(Report.missing("No run says which clips it was trained on (config.yaml)."));
});
