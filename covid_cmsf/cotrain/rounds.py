"""Rounds in short -> stages, written out.

infonce-rgb, infonce-flow                the starts
continued-*, msf-*, oracle-*             controls, from the same starts, for as long as a round
cmsf-flow-1, cmsf-rgb-1, cmsf-flow-2 ... the rounds: each is guided by the newest network of the other modality
"""

from copy import deepcopy
from typing import Any

from covid_cmsf.config import deep_update
from covid_cmsf.cotrain.plan import PlanConfig, StageConfig
from covid_cmsf.training.method_config import CmsfConfig, MsfConfig

Values = dict[str, Any]


def expand_stages(plan: PlanConfig) -> list[StageConfig]:
    """All stages of a plan: baselines, those that are listed, then those of its rounds."""
    stages = [*_baseline_stages(plan), *plan.stages]
    if not plan.rounds:
        return stages
    pretrained = {modality: f"{_method_name(plan.pretrain, 'infonce')}-{modality}" for modality in plan.modalities}
    for modality, name in pretrained.items():
        stages.append(StageConfig(name=name, modality=modality, overrides=pretrain_config(plan, modality)))
    for control in plan.controls:
        stages += [_control_stage(control, modality, name, plan) for modality, name in pretrained.items()]
    newest = dict(pretrained)
    order = sorted(plan.modalities, key=lambda modality: modality != plan.first)
    for number in range(1, plan.rounds + 1):
        for modality in order:
            (other,) = set(plan.modalities) - {modality}
            stage = StageConfig(
                name=f"{_method_name(plan.cmsf, 'cmsf')}-{modality}-{number}",
                modality=modality,
                init=pretrained[modality] if plan.init == "base" else newest[modality],
                guide=newest[other],
                **_split_guide(plan.cmsf),
            )
            stages.append(stage)
            newest[modality] = stage.name
    return stages


def pretrain_config(plan: PlanConfig, modality: str) -> Values:
    """The settings of a modality's first stage."""
    values = deepcopy(plan.pretrain)
    deep_update(values, plan.pretrain_overrides.get(modality, {}))
    return values


def _baseline_stages(plan: PlanConfig) -> list[StageConfig]:
    """What needs no training. Without it nobody can tell whether a number is high."""
    stages = []
    for name in plan.baselines:
        if name == "chance":
            continue  # a row of the table, known from any stage's videos
        if name == "random":
            encoder = str(plan.defaults.get("encoder", "s3d"))
            stages += [StageConfig(name=f"random-{one}", modality=one, random=encoder) for one in plan.modalities]
        else:
            modality = "rgb" if name == "color" else "flow"
            stages.append(StageConfig(name=f"{name}-histogram", modality=modality, histogram=name))
    return stages


def _control_stage(control: str, modality: str, init: str, plan: PlanConfig) -> StageConfig:
    """The same start and the same number of epochs, but another method."""
    cmsf = _split_guide(plan.cmsf)["overrides"]
    if control == "continued":
        overrides = {**pretrain_config(plan, modality), "schedule": cmsf.get("schedule", {})}
    else:
        overrides = {**cmsf, "method": _control_method(control, cmsf.get("method", {}))}
    return StageConfig(name=f"{control}-{modality}", modality=modality, init=init, overrides=overrides)


def _control_method(control: str, cmsf: Values) -> Values:
    if control == "oracle":  # what a perfect guide would give: the true labels
        return {**cmsf, "constraint": "label"}
    own = set(MsfConfig.model_fields) & set(CmsfConfig.model_fields) - {"name"}
    return {"name": "msf", **{key: value for key, value in cmsf.items() if key in own}}


def _split_guide(cmsf: Values) -> dict[str, Values]:
    """`cmsf` may say how guides are used under `guide`: that is not part of a training run's settings."""
    return {
        "guide_overrides": cmsf.get("guide", {}),
        "overrides": {key: value for key, value in cmsf.items() if key != "guide"},
    }


def _method_name(values: Values, default: str) -> str:
    return str(values.get("method", {}).get("name", default))
