"""Rounds in short -> stages, written out.

infonce-rgb, infonce-flow                the starts
continued-*, msf-*, oracle-*             controls, from the same starts, for as long as a round
cmsf-flow-1, cmsf-rgb-1, cmsf-flow-2 ... the rounds: each is guided by the newest network of the other modality
"""

from copy import deepcopy
from typing import Any

from covid_cmsf.config import merge
from covid_cmsf.cotrain.plan import PlanSettings, StageSettings
from covid_cmsf.training.method_settings import CmsfSettings, MsfSettings

Values = dict[str, Any]


def stages_of(plan: PlanSettings) -> list[StageSettings]:
    """All stages of a plan: baselines, those that are listed, then those of its rounds."""
    stages = [*_baselines(plan), *plan.stages]
    if not plan.rounds:
        return stages
    starts = {modality: f"{_name(plan.start, 'infonce')}-{modality}" for modality in plan.modalities}
    for modality, name in starts.items():
        stages.append(StageSettings(name=name, modality=modality, settings=start_of(plan, modality)))
    for control in plan.controls:
        stages += [_control(control, modality, name, plan) for modality, name in starts.items()]
    newest = dict(starts)
    order = sorted(plan.modalities, key=lambda modality: modality != plan.first)
    for number in range(1, plan.rounds + 1):
        for modality in order:
            (other,) = set(plan.modalities) - {modality}
            stage = StageSettings(
                name=f"{_name(plan.shift, 'cmsf')}-{modality}-{number}",
                modality=modality,
                init=starts[modality] if plan.init == "base" else newest[modality],
                guide=newest[other],
                **_split(plan.shift),
            )
            stages.append(stage)
            newest[modality] = stage.name
    return stages


def start_of(plan: PlanSettings, modality: str) -> Values:
    """The settings of a modality's first stage."""
    values = deepcopy(plan.start)
    merge(values, plan.start_changes.get(modality, {}))
    return values


def _baselines(plan: PlanSettings) -> list[StageSettings]:
    """What needs no training. Without it nobody can tell whether a number is high."""
    stages = []
    for name in plan.baselines:
        if name == "chance":
            continue  # a row of the table, known from any stage's videos
        if name == "random":
            encoder = str(plan.settings.get("encoder", "s3d"))
            stages += [StageSettings(name=f"random-{one}", modality=one, random=encoder) for one in plan.modalities]
        else:
            modality = "rgb" if name == "color" else "flow"
            stages.append(StageSettings(name=f"{name}-histogram", modality=modality, histogram=name))
    return stages


def _control(control: str, modality: str, start: str, plan: PlanSettings) -> StageSettings:
    """The same start and the same number of epochs, but another method."""
    shift = _split(plan.shift)["settings"]
    if control == "continued":
        settings = {**start_of(plan, modality), "schedule": shift.get("schedule", {})}
    else:
        settings = {**shift, "method": _method(control, shift.get("method", {}))}
    return StageSettings(name=f"{control}-{modality}", modality=modality, init=start, settings=settings)


def _method(control: str, cmsf: Values) -> Values:
    if control == "oracle":  # what a perfect guide would give: the true labels
        return {**cmsf, "constraint": "label"}
    own = set(MsfSettings.model_fields) & set(CmsfSettings.model_fields) - {"name"}
    return {"name": "msf", **{key: value for key, value in cmsf.items() if key in own}}


def _split(shift: Values) -> dict[str, Values]:
    """`shift` may say how guides are used under `guide`: that is not part of a training run's settings."""
    return {
        "guide_settings": shift.get("guide", {}),
        "settings": {key: value for key, value in shift.items() if key != "guide"},
    }


def _name(settings: Values, usual: str) -> str:
    return str(settings.get("method", {}).get("name", usual))
