// Provenance: commands, versions, machines, durations, hashes, configurations.
"use strict";
Page.section("provenance", (body) => {
  const { el, format, state } = Page;
  state.open ||= new Set();

  function more(key, summary, ...children) {
    const made = el("details", { open: state.open.has(key), ontoggle: () => (made.open ? state.open.add(key) : state.open.delete(key)) }, el("summary", {}, summary), children);
    return made;
  }

  const hash = (value) => el("code", { title: value }, value.slice(0, 12));
  const list = (found) => el("ul", { class: "hashes" }, Object.entries(found).map(([name, value]) => el("li", {}, `${name} `, hash(value))));

  function machines(stages) {
    const seen = new Map();
    for (const stage of stages) for (const start of stage.starts) {
      const facts = { ...start.versions, system: start.machine?.system, cpu: start.machine?.cpu, threads: start.machine?.threads, device: start.device, processes: start.processes,
        commit: start.git ? start.git.commit.slice(0, 12) + (start.git.changed ? " and changes" : "") : null };
      const key = JSON.stringify(facts);
      seen.set(key, [facts, (seen.get(key)?.[1] || 0) + 1]);
    }
    return [...seen.values()].map(([facts, count]) => el("div", { class: "machine" }, el("p", { class: "quiet" }, `${count} ${count === 1 ? "start" : "starts"} with`),
      el("dl", { class: "numbers" }, Object.entries(facts).filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, String(value)))))));
  }

  Page.load("provenance").then((plans) => body.replaceChildren(...plans.map((plan) => {
    const rows = plan.stages.map((stage) => [[stage.name, stage.run].filter(Boolean).join(", "), stage.state, stage.starts[0]?.time?.replace("T", " ").replace("Z", "") ?? "", String(stage.starts.length || ""), format.duration(stage.seconds),
      format.duration(stage.total_seconds), stage.num_skipped ?? "", list(stage.hashes)]);
    const total = plan.stages.reduce((sum, stage) => sum + (stage.seconds || 0), 0);
    return el("div", { class: "origin" }, el("h3", {}, plan.name), el("p", { class: "id quiet" }, plan.folder),
      el("h4", {}, "Commands"), plan.commands.length ? plan.commands.map((command) => el("pre", { class: "command", tabindex: "0" }, command)) : Page.missing("No start is on record (environment.jsonl). To start it: ", Page.data.report.plans.find((one) => one.name === plan.name).go_on),
      el("h4", {}, "Versions and hardware"), machines(plan.stages),
      el("h4", {}, `Durations and hashes (training ${format.duration(total)} in all)`),
      Page.plain(["Stage", "State", "First start, UTC", "Starts", "Training", "Last start, with evaluation", "Skipped videos", "SHA-256"], rows, { class: "origins" }),
      el("h4", {}, "Configuration"), plan.plan ? more(`${plan.name} plan`, "plan.json", el("pre", { tabindex: "0" }, plan.plan)) : "",
      plan.stages.filter((stage) => stage.config).map((stage) => more(`${plan.name} ${stage.name} ${stage.run}`, [stage.name, stage.run].filter(Boolean).join(", "), el("pre", { tabindex: "0" }, stage.config))));
  }))).catch((error) => body.replaceChildren(Page.missing(`${error.message}. Write the report again: `, Page.data.report.command)));
});
