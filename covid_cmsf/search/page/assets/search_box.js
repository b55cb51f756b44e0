// Type a name, or drop a video file.
"use strict";
Page.searchBox = (() => {
  const { el, store } = Page;
  const { page, videos } = Page.data;
  const MOST = 40;
  const box = document.getElementById("name"), list = document.getElementById("names"), curtain = document.getElementById("drop");
  const lower = videos.ids.map((id) => id.toLowerCase());
  let found = [], current = -1;

  // Names that begin with the text, then those that contain all of its words.
  function matches(text) {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    if (!words.length) return [];
    const [first, rest] = [[], []];
    let more = 0;
    for (let video = 0; video < lower.length; video++) {
      if (!words.every((word) => lower[video].includes(word))) continue;
      if (lower[video].startsWith(words[0]) && first.length < MOST) first.push(video);
      else if (rest.length < MOST) rest.push(video);
      else more += 1;
    }
    const all = [...first, ...rest];
    return Object.assign(all.slice(0, MOST), { more: more + Math.max(0, all.length - MOST) });
  }

  function show(text) {
    found = matches(text);
    current = found.length ? 0 : -1;
    list.replaceChildren(...found.map((video, i) => el("li", { role: "option", id: `name-${i}`, "data-video": video,
      onpointerdown: (event) => { event.preventDefault(); choose(i); } }, videos.ids[video])),
      found.more ? el("li", { class: "quiet" }, `and ${Page.format.count(found.more)} more`) : "",
      text.trim() && !found.length ? el("li", { class: "quiet" }, "no video with this name") : "");
    open(Boolean(text.trim()));
    mark();
  }

  function open(yes) {
    list.hidden = !yes;
    box.setAttribute("aria-expanded", String(yes));
  }

  function mark() {
    [...list.children].forEach((one, i) => one.setAttribute("aria-selected", String(i === current)));
    if (current >= 0) {
      box.setAttribute("aria-activedescendant", `name-${current}`);
      list.children[current]?.scrollIntoView({ block: "nearest" });
    } else box.removeAttribute("aria-activedescendant");
  }

  function choose(i) {
    if (found[i] === undefined) return;
    box.value = "";
    open(false);
    store.ask({ video: found[i] });
    document.getElementById("panel").focus({ preventScroll: true });
  }

  function key(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (steps[event.key] && found.length) { current = (current + steps[event.key] + found.length) % found.length; mark(); }
    else if (event.key === "Enter") choose(current);
    else if (event.key === "Escape") { if (list.hidden) box.blur(); open(false); }
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  async function take(file) {
    if (!page.live) throw new Error("a page opened from disk cannot read videos; start the server: covid-cmsf search serve");
    if (!page.max_upload) throw new Error("this index has no encoders, so only its own videos can be queries");
    if (file.size > page.max_upload) throw new Error(`${file.name} has ${Page.format.bytes(file.size)}; at most ${Page.format.bytes(page.max_upload)} are read`);
    Page.say(`${file.name}: reading and embedding …`, { stay: true });
    const query = await Page.api.upload(file);
    Page.say("");
    store.ask(query);
  }

  function start() {
    box.placeholder = page.max_upload ? "Type a name, or drop a video  ( / )" : "Type a name  ( / )";
    box.setAttribute("aria-label", "Search by name");
    box.addEventListener("input", () => show(box.value));
    box.addEventListener("keydown", key);
    box.addEventListener("blur", () => open(false));
    box.addEventListener("focus", () => { if (box.value) show(box.value); });
    if (page.max_upload) {
      const input = el("input", { type: "file", accept: "video/*,.avi,.mkv,.gif", hidden: true, "aria-label": "A video file", onchange: () => { if (input.files[0]) take(input.files[0]).catch(Page.fail); input.value = ""; } });
      document.getElementById("search").append(input, Page.button("Open…", () => input.click(), { id: "open", title: "Find videos like a file" }));
    }
    let depth = 0;
    const cover = (change) => { depth = Math.max(0, depth + change); curtain.hidden = depth === 0; };
    window.addEventListener("dragenter", (event) => { if (event.dataTransfer?.types.includes("Files")) { event.preventDefault(); cover(1); } });
    window.addEventListener("dragleave", () => cover(-1));
    window.addEventListener("dragover", (event) => event.preventDefault());
    window.addEventListener("drop", (event) => {
      event.preventDefault();
      cover(-depth);
      const [file] = event.dataTransfer.files;
      if (file) take(file).catch(Page.fail);
    });
  }

  return { start, take };
})();
