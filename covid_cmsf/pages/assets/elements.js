// DOM elements. Text is always text: the name of a video can never become markup.
"use strict";
(() => {
  // el("td", {class: "n", onclick: f}, "text", otherElement); null and false children are skipped.
  Page.el = (tag, attributes = {}, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
      else made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return made;
  };

  Page.svg = (tag, attributes = {}, ...children) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  };

  const { el } = Page;

  // A labeled choice: options are [value, label]; `change` gets the value.
  Page.choice = (label, options, value, change) => {
    const select = el("select", { onchange: () => change(select.value) });
    for (const [own, text] of options) select.append(el("option", { value: own, selected: String(own) === String(value) }, text));
    return el("label", { class: "choice" }, el("span", {}, label), select);
  };

  Page.tick = (label, value, change) => {
    const box = el("input", { type: "checkbox", onchange: () => change(box.checked) });
    box.checked = value;
    return el("label", { class: "tick" }, box, el("span", {}, label));
  };

  Page.button = (label, press, attributes = {}) => el("button", { type: "button", onclick: press, ...attributes }, label);

  // A message about missing data, and the command that makes it.
  Page.missing = (label, command) => el("p", { class: "missing" }, label, command ? el("code", {}, command) : null);

  Page.plain = (heads, rows, attributes = {}) =>
    el("div", { class: "scroll" }, el("table", attributes,
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, typeof head === "string" && Page.term ? Page.term(head) : head)))),
      el("tbody", {}, rows.map((cells) => el("tr", {}, cells.map((cell) => el("td", {}, cell ?? "")))))));

  // Draw an element when it is about to become visible.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        near.unobserve(entry.target);
        entry.target.whenNear?.();
      }
    }
  }, { rootMargin: "400px" });
  Page.whenNear = (element, draw) => {
    element.whenNear = draw;
    near.observe(element);
  };
})();
