// What the sections about videos share: the plan's series, and choices of modality and of a stage before and after.
"use strict";
Report.filters = (() => {
  const { state } = Report;

  // Calls draw(series, more, number) when the plan's data files are there; says what is missing where there are none.
  async function withSeries(body, names, draw) {
    const plan = Report.data.report.plans[state.plan];
    if (!plan.series) {
      body.replaceChildren(Report.missing("This needs features of the test videos, which are not there yet. ", plan.missing));
      return;
    }
    const number = plan.series.number;
    try {
      const loaded = await Promise.all([`series-${number}`, ...names.map((name) => `${name}-${number}`)].map(Report.load));
      draw(plan, ...loaded);
    } catch (error) {
      body.replaceChildren(Report.missing(`${error.message}: write the report again.`));
    }
  }

  const modalities = (series) => [...new Set(series.stages.map((stage) => stage.modality))];

  // The chosen modality's stages as [number, stage]; a choice that another plan lacks falls back to its first.
  function stagesOf(series) {
    const all = modalities(series);
    if (!all.includes(state.modality)) state.modality = all[0];
    return series.stages.map((stage, number) => [number, stage]).filter(([, stage]) => stage.modality === state.modality);
  }

  function modalityChoice(series, again) {
    const all = modalities(series);
    return all.length < 2 ? "" : Report.choice("Networks that see", all.map((name) => [name, name]), state.modality, (value) => { state.modality = value; state.pair = null; again(); });
  }

  // [before, after], numbers of stages: the start and the last round unless the reader chose others.
  function pair(plan, series) {
    const mine = stagesOf(series).map(([number]) => number);
    const usual = plan.series.before_and_after[state.modality || ""] || [mine[0], mine[mine.length - 1]];
    return state.pair && state.pair.every((number) => mine.includes(number)) ? state.pair : usual;
  }

  function pairChoice(plan, series, again) {
    const now = pair(plan, series);
    if (stagesOf(series).length < 2) return [];
    const options = stagesOf(series).map(([number, stage]) => [number, `${stage.name} (${Report.words.number(stage.r1)})`]);
    const change = (side) => (value) => { state.pair = [...now]; state.pair[side] = Number(value); again(); };
    return [Report.choice("Before", options, now[0], change(0)), Report.choice("After", options, now[1], change(1))];
  }

  const seedWords = (plan) => (plan.seeds.length > 1 ? `Seed ${plan.series.seed} is shown; covid-cmsf report …/seed-N shows another. ` : "");

  return { withSeries, modalities, stagesOf, modalityChoice, pair, pairChoice, seedWords };
})();
