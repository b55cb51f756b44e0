// The map with its tools: method, colors, lasso, zoom, a card for the video under the pointer, and a legend.
"use strict";
Page.map = (() => {
  const { el, store } = Page;
  const { page, videos } = Page.data;
  const COLORS = ["#4477aa", "#ee6677", "#2f9e44", "#aa3377", "#cc8800", "#33a6c9", "#8a63d2", "#d9480f", "#0f8b8d", "#9c8b00", "#c2255c", "#6b7280"];
  const colorOf = (number) => COLORS[number % COLORS.length];
  const byId = (id) => document.getElementById(id);
  const card = byId("map-card");
  let method = page.methods[page.methods.length - 1];
  let hovered = null, hoverTimer = null;

  const view = new Page.MapView(byId("canvas"), {
    onpick: (video) => store.ask({ video }),
    onlasso: (chosen, add) => { store.select(chosen, { add }); if (chosen.length) store.show("selection"); Page.say(`${Page.format.count(store.state.selection.size)} videos selected`); },
    onhover: hover,
  });

  function hover(video, x, y) {
    view.canvas.classList.toggle("over", video !== null && video !== undefined);
    if (video === null || video === undefined) { card.hidden = true; hovered = null; clearTimeout(hoverTimer); return; }
    card.style.left = `${Math.max(4, Math.min(view.width - 180, x + 14))}px`;
    card.style.top = `${Math.max(4, Math.min(view.height - 150, y + 14))}px`;
    if (video === hovered) return;
    hovered = video;
    const about = [store.className(video), store.state.labels.get(video)].filter(Boolean).join(" · ");
    const text = el("p", {}, el("b", {}, videos.ids[video]), about ? el("span", { class: "quiet" }, about) : "");
    card.replaceChildren(text);
    card.hidden = false;
    clearTimeout(hoverTimer); // no pictures of what the pointer only passes
    hoverTimer = setTimeout(() => { if (hovered === video) card.replaceChildren(Page.cards.loops({ video }, videos.ids[video]), text); }, 120);
  }

  async function draw() {
    const wanted = `map-${store.state.choice}-${method}`;
    const places = await Page.load(wanted);
    if (wanted !== `map-${store.state.choice}-${method}`) return;
    view.setPoints(places.x, places.y);
    const shares = places.explained.map((one) => `${Math.round(100 * one)}%`).join(" and ");
    byId("map-tools").querySelector(".explained").textContent = method === "pca" ? `two principal components: ${shares} of the variance` : "UMAP: small distances are meaningful, large ones are not";
    view.palette = [quiet()];
    view.color = new Uint8Array(places.x.length);  // all alike until the groups are there: clusters take a while
    view.draw();
    performance.mark("map-drawn");
    await recolor();
    view.canvas.dataset.drawn = wanted;
  }

  const quiet = () => getComputedStyle(document.documentElement).getPropertyValue("--quiet").trim();

  // Groups by class, cluster or label: [names, number per video]; -1 has no group.
  async function groups() {
    if (store.state.color === "class") return [videos.class_names, videos.classes];
    if (store.state.color === "label") {
      const names = [...new Set(store.state.labels.values())].sort();
      return [names, videos.ids.map((_, video) => names.indexOf(store.state.labels.get(video)))];
    }
    await Page.clusters.load();
    const of = Page.clusters.of();
    return of ? [Page.clusters.names(), of] : [[], videos.ids.map(() => -1)];
  }

  async function recolor() {
    const wanted = [store.state.color, store.state.choice].join();
    const [names, numbers] = await groups();
    if (wanted !== [store.state.color, store.state.choice].join()) return;
    view.palette = [...COLORS, quiet()];
    view.color = Uint8Array.from(numbers, (number) => (number < 0 ? COLORS.length : number % COLORS.length));
    view.draw();
    const shown = names.slice(0, 24).map((name, number) => {
      const swatch = el("i", { class: "dot" });
      swatch.style.background = colorOf(number);
      const choose = () => store.select(numbers.flatMap?.((one, video) => (one === number ? [video] : [])) ?? [...numbers.keys()].filter((video) => numbers[video] === number));
      return el("button", { type: "button", class: "key", title: `Select ${name}`, onclick: choose }, swatch, name);
    });
    byId("legend").replaceChildren(...shown, names.length > 24 ? el("span", { class: "quiet" }, `and ${names.length - 24} more`) : "");
  }

  function tools() {
    const colors = [...(videos.class_names.length ? [["class", "class"]] : []), ["cluster", "cluster"], ["label", "my labels"]];
    const lasso = Page.button("Lasso", () => { view.lassoing = !view.lassoing; pressed(); }, { id: "lasso", title: "Draw around videos to select them; or Shift and drag" });
    const pressed = () => { lasso.setAttribute("aria-pressed", String(view.lassoing)); view.canvas.classList.toggle("lassoing", view.lassoing); };
    pressed();
    byId("map-tools").replaceChildren(
      Page.choice("Color", colors, store.state.color, (value) => { store.state.color = value; recolor(); }),
      page.methods.length > 1 ? Page.choice("Map", page.methods.map((one) => [one, one.toUpperCase()]), method, (value) => { method = value; draw(); }) : "",
      lasso, Page.button("+", () => view.zoom(1.5), { "aria-label": "Zoom in" }), Page.button("−", () => view.zoom(1 / 1.5), { "aria-label": "Zoom out" }),
      Page.button("Fit", () => view.fit(), { title: "Show all videos (0)" }), el("span", { class: "quiet explained" }));
  }

  function mark() {
    const { query, results, selection } = store.state;
    Object.assign(view, { query: query?.video ?? null, results: results?.videos || [], selection });
    view.draw();
  }

  function start() {
    tools();
    store.on("choice", () => draw().catch(Page.fail));
    for (const name of ["query", "results", "selection"]) store.on(name, mark);
    store.on("query", () => { if (store.state.query?.video !== undefined) view.reveal(store.state.query.video); });
    store.on("labels", () => { if (store.state.color === "label") recolor(); });
    Page.theme.onChange(() => recolor());
    mark();
    return draw();
  }

  function point(video) { view.pointed = video; view.draw(); }

  function colorBy(value) { store.state.color = value; tools(); recolor(); }

  return { view, start, point, colorOf, colorBy };
})();
