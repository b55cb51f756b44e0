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

With three modalities or more, each is guided by the newest networks of all others; `method.combine` says whether a
candidate has to be one of all guides or of any.

    cmsf-flow-1   infonce-flow   infonce-rgb, infonce-motion    (modalities: [rgb, flow, motion])
    cmsf-rgb-1    infonce-rgb    cmsf-flow-1, infonce-motion
    cmsf-motion-1 infonce-motion cmsf-rgb-1, cmsf-flow-1

A network of another library can guide as well (`guides: [timm:NAME]`), in a stage per modality:

    NAME                                        only measured
    cmsf-rgb-NAME   infonce-rgb    NAME
    cmsf-flow-NAME  infonce-flow   NAME

Controls (continued-*, msf-*, oracle-*, coclr-*) start from the same pretrained networks and train for as long as one
round. CoCLR is guided by the other modality's pretrained network.
"""

from covid_cmsf.cotrain.plan import Control, PlanConfig, StageConfig, Values, merge_layers
from covid_cmsf.methods.contrastive import CoClrConfig
from covid_cmsf.methods.mean_shift import CmsfConfig, MsfConfig
from covid_cmsf.models.named_networks import named_library, network_name


def alternate(plan: PlanConfig, pretrained: dict[str, str]) -> list[StageConfig]:
    """Return the stages of all rounds; `pretrained` maps each modality to its pretraining stage."""
    stages: list[StageConfig] = []
    newest = dict(pretrained)
    order = sorted(plan.modalities, key=lambda modality: modality != plan.first)
    for number in range(1, plan.rounds + 1):
        for modality in order:
            stage = StageConfig(
                name=f"{_method_name(plan.cmsf, 'cmsf')}-{modality}-{number}",
                modality=modality,
                # The paper restarts from `pretrain` in every round; CoCLR continues from the last round.
                init=pretrained[modality] if plan.init == "base" else newest[modality],
                guide=_others(newest, modality),
                guide_overrides=plan.cmsf_guide_values,
                overrides=plan.cmsf_train_values,
            )
            stages.append(stage)
            newest[modality] = stage.name
    return stages


def _others(stages: dict[str, str], modality: str) -> str | tuple[str, ...]:
    """Return the stages of all other modalities; a name if it is one."""
    others = tuple(name for other, name in stages.items() if other != modality)
    return others if len(others) > 1 else others[0]


def expand_stages(plan: PlanConfig) -> list[StageConfig]:
    """Return all stages of a plan: baselines, listed stages, pretraining, controls, rounds, those of `guides`."""
    stages = [*_baseline_stages(plan), *(plan.with_section(stage) for stage in plan.stages)]
    if not plan.rounds and not plan.guides:
        return stages
    pretrained = {modality: f"{_method_name(plan.pretrain, 'infonce')}-{modality}" for modality in plan.modalities}
    for modality, name in pretrained.items():
        stages.append(StageConfig(name=name, modality=modality, overrides=plan.pretrain_values(modality)))
    for control in plan.controls:
        stages += [_control_stage(control, modality, pretrained, plan) for modality in pretrained]
    rounds = alternate(plan, pretrained)
    newest = {stage.modality: stage.name for stage in rounds}
    return [*stages, *rounds, *_named_guide_stages(plan, pretrained, newest)]


def _named_guide_stages(
    plan: PlanConfig, pretrained: dict[str, str], newest: dict[str | None, str]
) -> list[StageConfig]:
    """Return, for each of `guides`, a stage that measures it and one per modality that it guides.

    These are compared with their guide, and with the last round of their modality.
    """
    stages: list[StageConfig] = []
    for address in plan.guides:
        name, library = network_name(address), named_library(address)
        assert library is not None  # checked by the plan
        stages.append(StageConfig(name=name, modality=library.modality, weights=address))
        stages += [
            StageConfig(
                name=f"{_method_name(plan.cmsf, 'cmsf')}-{modality}-{name}",
                modality=modality,
                init=start,
                guide=name,
                guide_overrides=plan.cmsf_guide_values,
                overrides=plan.cmsf_train_values,
                compare=(name, newest[modality]) if modality in newest else name,
            )
            for modality, start in pretrained.items()
        ]
    return stages


def _baseline_stages(plan: PlanConfig) -> list[StageConfig]:
    """Return the stages that are only evaluated: random weights and histograms."""
    stages = []
    for name in plan.baselines:
        if name == "chance":
            continue  # a row of the table, computed from any stage's result
        if name == "random":
            encoders = {one: str(plan.defaults_of(one).get("encoder", "s3d")) for one in plan.modalities}
            stages += [
                StageConfig(name=f"random-{one}", modality=one, random=encoder) for one, encoder in encoders.items()
            ]
        else:
            modality = "rgb" if name == "color" else "flow"
            stages.append(StageConfig(name=f"{name}-histogram", modality=modality, histogram=name))
    return stages


def _control_stage(control: Control, modality: str, pretrained: dict[str, str], plan: PlanConfig) -> StageConfig:
    """Return a stage with the init and the epochs of a round, but another method."""
    cmsf = plan.cmsf_train_values
    if control == "continued":
        values = {**plan.pretrain_values(modality), "schedule": cmsf.get("schedule", {})}
    else:
        values = {**cmsf, "method": _control_method(control, cmsf.get("method", {}))}
    is_guided = control == "coclr"
    return StageConfig(
        name=f"{control}-{modality}",
        modality=modality,
        init=pretrained[modality],
        guide=_others(pretrained, modality) if is_guided else None,
        guide_overrides=plan.cmsf_guide_values if is_guided else {},
        overrides=merge_layers(values, plan.control_overrides.get(control, {})),
    )


def _control_method(control: Control, cmsf: Values) -> Values:
    if control == "oracle":  # the true labels: an upper bound for any guide
        return {**cmsf, "constraint": "label"}
    name, config = ("coclr", CoClrConfig) if control == "coclr" else ("msf", MsfConfig)
    shared = set(config.model_fields) & set(CmsfConfig.model_fields) - {"name"}
    return {"name": name, **{key: value for key, value in cmsf.items() if key in shared}}


def _method_name(values: Values, default: str) -> str:
    return str(values.get("method", {}).get("name", default))
