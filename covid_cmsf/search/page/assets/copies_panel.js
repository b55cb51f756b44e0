// Copies among the videos, to confirm or dismiss.
"use strict";
Page.section("copies", (body) => {
  const { el, store, cards } = Page;
  const { page, videos } = Page.data;
  const KINDS = { copy: "copy", contained: "part of it", shared: "share a part" };
  const own = (store.state.copies ||= { filter: "open", shared: false });
  const keyOf = (pair) => `${videos.ids[pair.first]}\t${videos.ids[pair.second]}`;
  const decided = (pair) => store.state.decisions.get(keyOf(pair)) || "";

  async function decide(pair, decision) {
    const key = keyOf(pair);
    if (decided(pair) === decision) store.state.decisions.delete(key);
    else store.state.decisions.set(key, decision);
    const [first, second] = key.split("\t");
    const all = [...store.state.decisions].map(([one, value]) => [...one.split("\t"), value]);
    const place = await Page.api.saveDecision(first, second, decided(pair), all);
    Page.say(place ? `saved in ${place}` : "not saved: this browser keeps nothing");
  }

  function side(video, part) {
    const start = Math.round(part[0] * (videos.fps[video] || 25)), span = Math.max(1, Math.round((part[1] - part[0]) * (videos.fps[video] || 25)));
    return el("div", { class: "side" }, cards.loops({ video }, videos.ids[video], { kinds: page.kinds.slice(0, 1), start, span }),
      el("button", { type: "button", class: "link name", title: videos.ids[video], onclick: () => store.ask({ video }) }, el("bdi", {}, videos.ids[video])),
      el("span", { class: "times" }, `${part[0].toFixed(1)}–${part[1].toFixed(1)} s`));
  }

  function row(pair) {
    const buttons = [["copy", "Same (y)"], ["different", "Different (n)"]].map(([decision, label]) =>
      Page.button(label, () => decide(pair, decision).then(mark).catch(Page.fail), { "data-decision": decision }));
    const facts = [KINDS[pair.kind], `${Math.round(100 * pair.share)}% of the shorter one`, pair.mirrored ? "mirrored" : "", Math.abs(pair.speed - 1) > 0.05 ? `speed ×${pair.speed.toFixed(2)}` : ""];
    const made = el("article", { class: "pair", tabindex: "0", "aria-label": `${videos.ids[pair.first]} and ${videos.ids[pair.second]}` },
      side(pair.first, pair.first_part), side(pair.second, pair.second_part),
      el("div", {}, el("p", {}, facts.filter(Boolean).join(" · ")), el("p", { class: "quiet" }, `pictures correlate ${pair.similarity.toFixed(2)}`), el("div", { class: "actions" }, buttons)));
    const mark = () => {
      made.dataset.decision = decided(pair);
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.decision === decided(pair)));
      counts();
    };
    made.addEventListener("keydown", (event) => {
      const decision = { y: "copy", n: "different" }[event.key];
      if (!decision || event.ctrlKey || event.metaKey) return;
      event.stopPropagation();
      decide(pair, decision).then(mark).catch(Page.fail);
      made.nextElementSibling?.focus();
    });
    queueMicrotask(mark);
    return made;
  }

  let pairs = [];
  const count = el("span", { class: "quiet", role: "status" });
  function counts() {
    const values = pairs.map(decided);
    count.textContent = `${values.filter((one) => one === "copy").length} confirmed, ${values.filter((one) => one === "different").length} dismissed, ${values.filter((one) => !one).length} open`;
  }

  function show(all) {
    pairs = all.filter((pair) => own.shared || pair.kind !== "shared");
    const listed = pairs.filter((pair) => own.filter !== "open" || !decided(pair));
    const again = (name) => (value) => { own[name] = value; show(all); };
    const rows = pairs.filter((pair) => decided(pair)).map((pair) => [videos.ids[pair.first], videos.ids[pair.second], decided(pair)]);
    body.replaceChildren(
      el("header", { class: "panel-head" }, el("h2", {}, `${Page.format.count(pairs.length)} pairs of copies`), count, el("div", { class: "actions" },
        Page.choice("Show", [["open", "open ones"], ["all", "all"]], own.filter, again("filter")),
        Page.tick("also those that only share a part", own.shared, again("shared")),
        Page.button("Save decisions as CSV", () => Page.csv.save("copies.csv", ["first", "second", "decision"], rows)))),
      ...cards.list(listed, row, { most: 30, className: "pairs" }),
      listed.length ? "" : el("p", { class: "missing" }, pairs.length ? "Everything is decided." : "No copies were found."));
    counts();
    body.dataset.shown = "copies";
  }

  async function look(start) {
    const status = await Page.api.copies({ start });
    if (store.state.panel !== "copies") return;
    if (status.state === "done") show(status.pairs);
    else if (status.state === "failed") throw new Error(status.error);
    else if (status.state === "new") body.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "Are there copies?"),
      el("p", { class: "quiet" }, "Pictures of similar videos are compared: re-encoded, cropped, mirrored, faster, slower, or part of a longer one. It runs in the background, and takes minutes where there are thousands of videos."),
      Page.button("Look for copies", () => look(true).catch(Page.fail), { class: "primary" })));
    else {
      body.replaceChildren(el("div", { class: "empty" }, el("h2", {}, "Comparing pictures"), el("progress", { max: status.total || 1, value: status.done, "aria-label": "pairs" }),
        el("p", { class: "quiet" }, status.total ? `${Page.format.count(status.done)} of ${Page.format.count(status.total)} pairs` : "proposing pairs …")));
      setTimeout(() => look(false).catch(Page.fail), 700);
    }
  }

  delete body.dataset.shown;
  if (!page.copies) body.replaceChildren(el("p", { class: "missing" }, page.live ? "Copies need the clip store; give it with --clips." : "This page was written without a search for copies."));
  else look(false).catch(Page.fail);
});
