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
    rgb: "RGB frames.",
    flow: "optical flow: how far each pixel moves from one frame to the next.",
    residual_flow: "optical flow minus the motion of the camera.",
    motion: "motion vectors that the video file has anyway: flow in blocks, without computing any.",
    residual_motion: "motion vectors minus the motion of the camera.",
    frame: "one single RGB frame.",
    rgbdiff: "differences of neighboring RGB frames.",
    Loss: "what training makes smaller: mean since the previous line of the log.",
    "Loss of X": "what training makes smaller. Losses of different methods have different units, so each has its own chart.",
    "Nearest neighbors": "measured during training: how often the nearest video has the query's class, or is the same video's other window.",
    "Learning rate": "size of the optimizer's steps.",
    "Samples per second": "videos that pass through the network per second of wall-clock time.",
    "Confusion of the nearest neighbor": "row: the query's class; column: the class of its nearest training video; each row adds up to 100%.",
    "Confusion of the linear classifier": "row: the video's class; column: the class that a linear classifier on frozen features gives it; each row adds up to 100%.",
    "R@1 per class, before and after": "R@1 of the videos of one class, of the two chosen stages.",
    "Linear accuracy per class, before and after": "share of a class's videos that a linear classifier on frozen features gets right, of the two chosen stages.",
    "Videos by class": "number of videos of each class and subset, in the first split.",
    map: "each point is a video; points that are near have similar features. The axes have no unit.",
    Seeds: "number of training runs that differ only in their random numbers.",
    Split: "a fixed division of the videos into subsets.",
    train: "videos that networks and classifiers are trained on.",
    fit: "the part of the training videos that remains without val.",
    val: "videos that settings are chosen on.",
    test: "videos that are only measured on.",
    Video: "id of the video: its path in the collection.",
    Step: "step of preprocessing that failed, such as decoding.",
    Reason: "what went wrong.",
    State: "done, begun or waiting.",
    "First start, UTC": "when it was started for the first time.",
    Starts: "how often it was started: more than once if it was stopped and resumed.",
    Training: "time of training, over all starts.",
    "Last start, with evaluation": "time of the last start alone, with evaluation.",
    "Skipped videos": "videos that could not be read, which are not counted anywhere.",
    "SHA-256": "fingerprints of files: two that are equal have the same content.",
  };

  // The key that explains a label: itself, the method it begins with, or the control in a stage's name.
  function keyOf(label) {
    if (Object.hasOwn(MEANINGS, label)) return label;
    if (/^CMSF \d+\/\d+/.test(label)) return "CMSF n/k";
    if (/^CMSF labels/.test(label)) return "oracle";
    if (/^Loss of /.test(label)) return "Loss of X";
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
