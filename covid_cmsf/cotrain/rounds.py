"""Expand `rounds: N` of a plan into stages.

Co-training alternates between two modalities, such as RGB and optical flow (CoCLR, Han et al. 2020; here with
constrained mean shift, Tejankar et al. 2021, as the loss). Each network is first pretrained alone with InfoNCE. Then,
N times, each modality in turn is trained with CMSF: the newest network of the *other* modality is frozen as its guide.

    stage         init           guide          (rounds: 2, first: flow, init: base)
    infonce-rgb
    infonce-flow
    cmsf-flow-1   infonce-flow   infonce-rgb
    cmsf-rgb-1    infonce-rgb    cmsf-flow-1
    cmsf-flow-2   infonce-flow   cmsf-rgb-1
    cmsf-rgb-2    infonce-rgb    cmsf-flow-2

Controls (continued-*, msf-*, oracle-*) start from the same pretrained networks and train for as long as one round.
"""

from copy import deepcopy

from covid_cmsf.config import deep_update
from covid_cmsf.cotrain.plan import PlanConfig, StageConfig, Values
from covid_cmsf.methods.mean_shift import CmsfConfig, MsfConfig


def alternate(plan: PlanConfig, pretrained: dict[str, str]) -> list[StageConfig]:
    """Return the stages of all rounds; `pretrained` maps each modality to its pretraining stage."""
    stages: list[StageConfig] = []
    newest = dict(pretrained)
    order = sorted(plan.modalities, key=lambda modality: modality != plan.first)
    for number in range(1, plan.rounds + 1):
        for modality in order:
            (other,) = set(plan.modalities) - {modality}
            stage = StageConfig(
                name=f"{_method_name(plan.cmsf, 'cmsf')}-{modality}-{number}",
                modality=modality,
                # The paper restarts from `pretrain` in every round; CoCLR continues from the last round.
                init=pretrained[modality] if plan.init == "base" else newest[modality],
                guide=newest[other],
                guide_overrides=plan.cmsf_guide_values,
                overrides=plan.cmsf_train_values,
            )
            stages.append(stage)
            newest[modality] = stage.name
    return stages


def expand_stages(plan: PlanConfig) -> list[StageConfig]:
    """Return all stages of a plan: baselines, listed stages, pretraining, controls, rounds."""
    stages = [*_baseline_stages(plan), *plan.stages]
    if not plan.rounds:
        return stages
    pretrained = {modality: f"{_method_name(plan.pretrain, 'infonce')}-{modality}" for modality in plan.modalities}
    for modality, name in pretrained.items():
        stages.append(StageConfig(name=name, modality=modality, overrides=pretrain_config(plan, modality)))
    for control in plan.controls:
        stages += [_control_stage(control, modality, name, plan) for modality, name in pretrained.items()]
    return [*stages, *alternate(plan, pretrained)]


def pretrain_config(plan: PlanConfig, modality: str) -> Values:
    """Return `pretrain` with the overrides of one modality."""
    values = deepcopy(plan.pretrain)
    deep_update(values, plan.pretrain_overrides.get(modality, {}))
    return values


def _baseline_stages(plan: PlanConfig) -> list[StageConfig]:
    """Return the stages that are only evaluated: random weights and histograms."""
    stages = []
    for name in plan.baselines:
        if name == "chance":
            continue  # a row of the table, computed from any stage's result
        if name == "random":
            encoder = str(plan.defaults.get("encoder", "s3d"))
            stages += [StageConfig(name=f"random-{one}", modality=one, random=encoder) for one in plan.modalities]
        else:
            modality = "rgb" if name == "color" else "flow"
            stages.append(StageConfig(name=f"{name}-histogram", modality=modality, histogram=name))
    return stages


def _control_stage(control: str, modality: str, init: str, plan: PlanConfig) -> StageConfig:
    """Return a stage with the init and the epochs of a round, but another method."""
    cmsf = plan.cmsf_train_values
    if control == "continued":
        overrides = {**pretrain_config(plan, modality), "schedule": cmsf.get("schedule", {})}
    else:
        overrides = {**cmsf, "method": _control_method(control, cmsf.get("method", {}))}
    return StageConfig(name=f"{control}-{modality}", modality=modality, init=init, overrides=overrides)


def _control_method(control: str, cmsf: Values) -> Values:
    if control == "oracle":  # the true labels: an upper bound for any guide
        return {**cmsf, "constraint": "label"}
    shared = set(MsfConfig.model_fields) & set(CmsfConfig.model_fields) - {"name"}
    return {"name": "msf", **{key: value for key, value in cmsf.items() if key in shared}}


def _method_name(values: Values, default: str) -> str:
    return str(values.get("method", {}).get("name", default))
