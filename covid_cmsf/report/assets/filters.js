// Shared by the sections about videos: the plan's gallery, and the selected modality and stages before and after.
"use strict";
Page.filters = (() => {
  const { state } = Page;

  // Calls draw(plan, gallery, ...) when the plan's data files are loaded; displays a message if there are none.
  async function withGallery(body, names, draw) {
    const plan = Page.data.report.plans[state.plan];
    if (!plan.gallery) {
      body.replaceChildren(Page.missing("This section needs features of the test videos, which do not exist yet. ", plan.missing ?? plan.go_on));
      return;
    }
    const number = plan.gallery.number;
    try {
      const loaded = await Promise.all([`gallery-${number}`, ...names.map((name) => `${name}-${number}`)].map(Page.load));
      draw(plan, ...loaded);
    } catch (error) {
      body.replaceChildren(Page.missing(`${error.message}. Write the report again: `, Page.data.report.command));
    }
  }

  const modalities = (gallery) => [...new Set(gallery.stages.map((stage) => stage.modality))];

  // Stages of the selected modality as [number, stage]; a plan without this modality uses its first.
  function stagesOf(gallery) {
    const all = modalities(gallery);
    if (!all.includes(state.modality)) state.modality = all[0];
    return gallery.stages.map((stage, number) => [number, stage]).filter(([, stage]) => stage.modality === state.modality);
  }

  function modalityChoice(gallery, again) {
    const all = modalities(gallery);
    return all.length < 2 ? "" : Page.choice("Modality", all.map((name) => [name, name]), state.modality, (value) => { state.modality = value; state.pair = null; again(); });
  }

  // [before, after], indices of stages: pretraining and the last round, unless others are selected.
  function pair(plan, gallery) {
    const mine = stagesOf(gallery).map(([number]) => number);
    const usual = plan.gallery.before_and_after[state.modality || ""] || [mine[0], mine[mine.length - 1]];
    return state.pair && state.pair.every((number) => mine.includes(number)) ? state.pair : usual;
  }

  function pairChoice(plan, gallery, again) {
    const now = pair(plan, gallery);
    if (stagesOf(gallery).length < 2) return [];
    const options = stagesOf(gallery).map(([number, stage]) => [number, stage.r1 === null ? stage.name : `${stage.name} (${Page.format.number(stage.r1)})`]);
    const change = (side) => (value) => { state.pair = [...now]; state.pair[side] = Number(value); again(); };
    return [Page.choice("Before", options, now[0], change(0)), Page.choice("After", options, now[1], change(1))];
  }

  const seedNote = (plan) => (plan.seeds.length > 1 || plan.splits.length > 1 ? `This is ${plan.gallery.run}; for another one: covid-cmsf report …/${plan.splits.length ? "split-N/" : ""}seed-N. ` : "");

  return { withGallery, modalities, stagesOf, modalityChoice, pair, pairChoice, seedNote };
})();
