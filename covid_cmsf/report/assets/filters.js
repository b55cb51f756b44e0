// What the sections about videos share: the plan's gallery, and choices of modality and of a stage before and after.
"use strict";
Report.filters = (() => {
  const { state } = Report;

  // Calls draw(gallery, more, number) when the plan's data files are there; says what is missing where there are none.
  async function withGallery(body, names, draw) {
    const plan = Report.data.report.plans[state.plan];
    if (!plan.gallery) {
      body.replaceChildren(Report.missing("This needs features of the test videos, which are not there yet. ", plan.missing));
      return;
    }
    const number = plan.gallery.number;
    try {
      const loaded = await Promise.all([`gallery-${number}`, ...names.map((name) => `${name}-${number}`)].map(Report.load));
      draw(plan, ...loaded);
    } catch (error) {
      body.replaceChildren(Report.missing(`${error.message}: write the report again.`));
    }
  }

  const modalities = (gallery) => [...new Set(gallery.stages.map((stage) => stage.modality))];

  // The chosen modality's stages as [number, stage]; a choice that another plan lacks falls back to its first.
  function stagesOf(gallery) {
    const all = modalities(gallery);
    if (!all.includes(state.modality)) state.modality = all[0];
    return gallery.stages.map((stage, number) => [number, stage]).filter(([, stage]) => stage.modality === state.modality);
  }

  function modalityChoice(gallery, again) {
    const all = modalities(gallery);
    return all.length < 2 ? "" : Report.choice("Networks that see", all.map((name) => [name, name]), state.modality, (value) => { state.modality = value; state.pair = null; again(); });
  }

  // [before, after], numbers of stages: the start and the last round unless the reader chose others.
  function pair(plan, gallery) {
    const mine = stagesOf(gallery).map(([number]) => number);
    const usual = plan.gallery.before_and_after[state.modality || ""] || [mine[0], mine[mine.length - 1]];
    return state.pair && state.pair.every((number) => mine.includes(number)) ? state.pair : usual;
  }

  function pairChoice(plan, gallery, again) {
    const now = pair(plan, gallery);
    if (stagesOf(gallery).length < 2) return [];
    const options = stagesOf(gallery).map(([number, stage]) => [number, `${stage.name} (${Report.format.number(stage.r1)})`]);
    const change = (side) => (value) => { state.pair = [...now]; state.pair[side] = Number(value); again(); };
    return [Report.choice("Before", options, now[0], change(0)), Report.choice("After", options, now[1], change(1))];
  }

  const seedNote = (plan) => (plan.seeds.length > 1 ? `Seed ${plan.gallery.seed} is shown; covid-cmsf report …/seed-N shows another. ` : "");

  return { withGallery, modalities, stagesOf, modalityChoice, pair, pairChoice, seedNote };
})();
