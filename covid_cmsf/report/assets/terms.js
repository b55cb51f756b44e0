// What the words of the page mean, shown on hover, on focus and by a tap.
"use strict";
(() => {
  const { el } = Page;
  const MEANINGS = {
    "CMSF n/k": "constrained mean shift: each video is pulled toward the mean of its k nearest among the n candidates of the guide.",
    "MSF k": "mean shift without a guide: each video is pulled toward the mean of its k nearest videos.",
    InfoNCE: "contrastive learning: a video's two views attract each other, all other videos repel.",
    CoCLR: "contrastive learning with the guide's nearest videos as further positives.",
    Index: "number of the row; Init and Constraint refer to it.",
    Model: "the method that trained the network, and below it the name of the stage.",
    Modality: "what the network sees: RGB frames or optical flow.",
    Init: "the stage that the network started from.",
    Constraint: "the stage whose network is the guide, or “labels”.",
    Epochs: "passes over the training videos; with + those after the start.",
    "R@1": "percentage of test videos whose nearest training video has their class.",
    Linear: "accuracy of a linear classifier on the frozen features, in percent.",
    "Other window": "percentage of videos whose first window finds their own last window among those of all videos.",
    "Own source": "percentage of videos whose nearest other video is of the same source (footage); asked are those that have one.",
    Agreement: "share of a video's ten nearest that the guide finds, too.",
    Transfer: "mean accuracy on other data sets.",
    Rank: "effective rank: how many directions the features use. A fall means collapse.",
    Time: "time of training.",
    paper: "the figure that the paper gives.",
    chance: "what a random ranking of the videos has.",
    continued: "control: more InfoNCE, as long as a round.",
    msf: "control: mean shift without a constraint, as long as a round.",
    oracle: "control: true labels as the constraint, an upper bound for any guide.",
    coclr: "control: CoCLR's contrastive loss, guided by the other pretrained network.",
    Stage: "one training run of the plan.",
    Over: "what the stage is compared with: the network that it started from, or a control of the same start.",
    Verdict: "where the 95% interval of the paired difference excludes zero.",
    control: "a stage that trains as long as a round from the same start, but without what is to be shown.",
    interval: "95% interval of the difference on the same test videos, resampling the videos' sources, and seeds where there are several.",
    "Purity of the neighbors": "share of the neighbors that have the query's class; labels are read only to measure it.",
    "Guide agreement": "how much the network and its guide already find the same neighbors.",
    "Effective rank": "how many directions the embeddings use. A fall means collapse.",
    guide: "the frozen network of the other modality, which proposes candidates.",
  };

  // The key that explains a label: itself, the method it begins with, or the control in a stage's name.
  function keyOf(label) {
    if (MEANINGS[label]) return label;
    if (/^CMSF \d+\/\d+/.test(label)) return "CMSF n/k";
    if (/^CMSF labels/.test(label)) return "oracle";
    if (/^MSF k=/.test(label)) return "MSF k";
    const start = label.split(/[-\s,]/)[0];
    return ["continued", "msf", "oracle", "coclr", "InfoNCE", "CoCLR", "chance"].find((name) => name === start);
  }

  const tip = document.body.appendChild(el("div", { id: "term-tip", class: "card", role: "tooltip", hidden: true }));

  let shown = null; // the element that is explained

  function place() {
    if (!shown) return;
    const at = shown.getBoundingClientRect();
    tip.style.left = `${Math.max(8, Math.min(window.innerWidth - tip.offsetWidth - 8, at.left))}px`;
    const below = at.bottom + 6;
    tip.style.top = `${below + tip.offsetHeight < window.innerHeight ? below : at.top - tip.offsetHeight - 6}px`;
  }
  function show(event) {
    shown = event.currentTarget;
    tip.textContent = MEANINGS[shown.dataset.term];
    tip.hidden = false;
    place();
  }
  const hide = () => { shown = null; tip.hidden = true; };
  window.addEventListener("scroll", place, { passive: true, capture: true });
  window.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });

  // A label with its explanation, if it has one.
  Page.term = (label, key = keyOf(label)) => key
    ? el("span", { class: "term", tabindex: "0", "data-term": key, "aria-description": MEANINGS[key], onmouseenter: show, onmouseleave: hide, onfocus: show, onblur: hide, onclick: show }, label)
    : label;
  Page.meaning = (key) => MEANINGS[key];
})();
