// Clips as cards: loops of RGB and flow, the matching window, and what each modality thinks of it.
"use strict";
Page.cards = (() => {
  const { el, store } = Page;
  const { page, videos } = Page.data;
  const percent = (value) => `${Math.max(0, Math.min(100, 100 * value))}%`;

  // Loops of a video or an upload; `kinds` as rgb, flow.
  function loops(query, label, { kinds = page.kinds, start = null, span = 32 } = {}) {
    const frame = el("div", { class: "loops" });
    for (const kind of kinds) {
      const image = Page.motion.watch(el("img", { alt: `${label}, ${kind === "rgb" ? "RGB" : kind}`, loading: "lazy", decoding: "async", draggable: "false" }));
      image.classList.add("waiting");
      image.addEventListener("load", () => image.classList.remove("waiting"));
      image.addEventListener("error", () => image.replaceWith(el("span", { class: "no-picture" }, `no ${kind}`)));
      frame.append(image);
      Page.api.picture(query, kind, start, span).then((address) => {
        if (address) image.src = address;
        else image.replaceWith(el("span", { class: "no-picture" }, `no ${kind}`));
      });
    }
    if (!kinds.length) frame.append(el("span", { class: "no-picture" }, "no pictures"));
    return frame;
  }

  // The name with its last part first in view: beginnings of ids are often alike.
  const name = (video) => el("span", { class: "name", title: videos.ids[video] }, el("bdi", {}, videos.ids[video]));

  function timeline(video, start, span) {
    const bar = el("div", { class: "timeline", "aria-hidden": "true" }, el("i"));
    const frames = videos.frames[video];
    if (!frames) return "";
    bar.firstChild.style.left = percent(start / frames);
    bar.firstChild.style.width = percent(Math.min(span, frames - start) / frames);
    return bar;
  }

  // One row per modality: score, and rank where it is searched alone.
  function foundBy(results, position) {
    return el("dl", { class: "by" }, page.modalities.filter((one) => results.by[one]).map((one) => {
      const value = results.by[one][position], rank = results.ranks[one][position];
      const bar = el("i");
      bar.style.width = percent(value ?? 0);
      const told = value === null ? `no ${one}` : rank ? `${one} alone ranks it ${rank}` : `not among the ${page.top} nearest by ${one} alone`;
      return el("div", { class: rank ? "found" : "", "data-modality": one, title: told }, el("dt", {}, one), el("dd", { class: "meter" }, bar),
        el("dd", { class: "value" }, value === null ? "–" : value.toFixed(2)), el("dd", { class: "rank" }, rank ? `#${rank}` : "–"));
    }));
  }

  function pick(video) {
    const box = el("input", { type: "checkbox", tabindex: "-1", "aria-label": `Select ${videos.ids[video]}`, onchange: () => store.toggle(video) });
    box.checked = store.state.selection.has(video);
    return box;
  }

  // A card: click or Enter makes it the query, x selects it, arrows go on to the next.
  function card(video, { start = null, span = 32, kinds = page.kinds, head = "", extra = [], press = null } = {}) {
    const label = store.state.labels.get(video) || store.className(video);
    const made = el("article", { class: "card clip-card", tabindex: "0", "data-video": video, "aria-label": videos.ids[video],
      onclick: (event) => { if (!event.target.closest("input, button")) (press || (() => store.ask({ video })))(); } },
      loops({ video }, videos.ids[video], { kinds, start, span }), el("div", { class: "line" }, pick(video), name(video), head),
      start === null ? "" : [timeline(video, start, span), el("p", { class: "times" }, store.times(video, start, span), label ? el("span", { class: "tag" }, label) : "")],
      start === null && label ? el("p", { class: "times" }, el("span", { class: "tag" }, label)) : "", extra);
    made.classList.toggle("chosen", store.state.selection.has(video));
    made.activate = () => (press || (() => store.ask({ video })))();
    made.addEventListener("pointerenter", () => Page.map?.point(video));
    made.addEventListener("pointerleave", () => Page.map?.point(null));
    return made;
  }

  // A list that grows on request.
  function list(items, make, { most = 48, className = "cards" } = {}) {
    const box = el("div", { class: className });
    const more = Page.button("", () => grow(), { class: "more" });
    let shown = 0;
    function grow() {
      box.append(...items.slice(shown, shown + most).map(make));
      shown = Math.min(items.length, shown + most);
      more.textContent = `Show ${Math.min(most, items.length - shown)} more of ${items.length - shown}`;
      more.hidden = shown >= items.length;
    }
    grow();
    return [box, more];
  }

  store.on("selection", () => {
    for (const one of document.querySelectorAll(".clip-card[data-video]")) {
      const chosen = store.state.selection.has(Number(one.dataset.video));
      one.classList.toggle("chosen", chosen);
      const box = one.querySelector("input[type=checkbox]");
      if (box) box.checked = chosen;
    }
  });

  return { loops, card, list, foundBy, name };
})();
