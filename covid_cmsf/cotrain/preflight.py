"""Checks of a plan before its first stage starts: those of every stage that will run, merged over the stages."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import get_column
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.evaluation.features.protocol import NUM_WINDOWS
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.preflight import (
    check_extraction,
    check_measurements,
    features_bytes,
    is_labeled,
    split_table,
)
from covid_cmsf.exit_codes import USER_ERRORS
from covid_cmsf.preflight import Problem, check_disk, check_memory, of_stage
from covid_cmsf.training.footprint import cache_bytes, checkpoint_bytes, estimate_footprint, meta_encoder
from covid_cmsf.training.preflight import VideoSummaries, check_training
from covid_cmsf.training.weights_preflight import TrainedOn, given_view, trained_on
from covid_cmsf.views.modalities import get_modality

logger = logging.getLogger(__name__)
WIDEST = 2048  # features of the widest encoder, r50


@dataclass
class PlanClips:
    """The clips of a plan: opened, summarized and tabulated once for all stages."""

    videos: VideoSummaries = field(default_factory=VideoSummaries)
    tables: dict[tuple[str, str], VideoTable] = field(default_factory=dict)
    measured: dict[tuple[str, str], list[Problem]] = field(default_factory=dict)
    extracted: dict[tuple[object, ...], list[Problem]] = field(default_factory=dict)

    def open(self, address: str) -> Clips:
        """Open clips; the same address is opened once."""
        return self.videos.open(address)

    def table(self, address: str, split: str) -> VideoTable:
        """Return the videos of a split."""
        if (address, split) not in self.tables:
            self.tables[address, split] = split_table(self.open(address), split)
        return self.tables[address, split]

    def check_extraction(self, address: str, split: str, **options: Any) -> list[Problem]:
        """Check an extraction; stages with the same clips, modality, windows and features share the answer."""
        key = (address, split, *options.values())
        if key not in self.extracted:
            opened = self.open(address)
            self.extracted[key] = check_extraction(opened, address=address, split=split, out=None, **options)
        return self.extracted[key]


def leave_out_labels(plan: PlanConfig, clips: PlanClips) -> PlanConfig:
    """Return the plan without the rows that need labels, if its clips have none: the control `oracle`, and chance."""
    address = plan.defaults.get("clips")
    try:
        labeled = address is None or max(get_column(clips.open(str(address)).records, "label")) >= 0
    except USER_ERRORS:  # told by `check_plan`
        return plan
    if labeled:
        return plan
    left_out = [name for name in ("oracle", "chance") if name in (*plan.controls, *plan.baselines)]
    if left_out:
        logger.warning("%s has no labels: left out of the plan: %s", address, ", ".join(left_out))
    controls = tuple(name for name in plan.controls if name != "oracle")
    baselines = tuple(name for name in plan.baselines if name != "chance")
    return plan.model_copy(update={"controls": controls, "baselines": baselines})


def check_plan(
    stages: Sequence[Stage], states: dict[str, str], clips: PlanClips, *, parallel: int = 1
) -> list[Problem]:
    """Return the problems of all stages whose state is `waiting`; `states` as from `stage_states`."""
    waiting = [stage for stage in stages if states[stage.id] == "waiting"]
    # What a stage that is not done will be trained on; whether it can run is its own problem.
    planned = {
        str(stage.checkpoint): _will_be_trained_on(stage, clips)
        for stage in stages
        if stage.config is not None and states[stage.id] != "done"
    }
    problems: list[Problem] = []
    for stage in waiting:
        problems += of_stage(_check_needs(stage, states), stage.name)
        if stage.config is not None:
            problems += of_stage(check_training(stage.config, planned=planned, videos=clips.videos), stage.name)
        elif stage.spec.weights is not None:
            problems += of_stage(_check_weights_file(stage), stage.name)
        if not any(one.stage == stage.name and one.severity == "error" for one in problems):
            problems += of_stage(_check_evaluation(stage, clips), stage.name)
    if waiting and not any(one.severity == "error" for one in problems):
        problems += _check_space(waiting, clips, parallel=parallel)
    return problems


def _check_needs(stage: Stage, states: dict[str, str]) -> list[Problem]:
    ids = zip(stage.needs, stage.needed_ids, strict=True)
    missing = [name for name, one in ids if states[one] == "not selected"]
    return [
        Problem(f"it needs stage {name}, which is not done and not selected: use --only {name} first, or --from {name}")
        for name in missing
    ]


def _will_be_trained_on(stage: Stage, clips: PlanClips) -> TrainedOn:
    assert stage.config is not None
    seen = get_modality(stage.config.modality, flow_style=stage.config.views.flow_style)
    try:
        info = clips.open(stage.clips).info
    except USER_ERRORS:  # told by the checks of the stage itself
        info = None
    flow = None if info is None else info.origin_of(seen.stored_modality)
    return TrainedOn(seen.name, seen.num_channels, given_view(stage.config.views, seen), flow)


def _check_weights_file(stage: Stage) -> list[Problem]:
    try:
        trained = trained_on(str(stage.spec.weights), branch=stage.spec.branch)
    except USER_ERRORS as error:
        return [Problem(f"weights: {error}")]
    channels = {get_modality(stage.modality, flow_style=style).num_channels for style in ("motion", "coclr")}
    if trained.in_channels not in channels:
        return [
            Problem(
                f"weights: {stage.spec.weights} takes {trained.in_channels} channels, and its modality is "
                f"{stage.modality}"
            )
        ]
    return []


def _check_evaluation(stage: Stage, clips: PlanClips) -> list[Problem]:
    """Check that the stage's features can be extracted, and measured where there are labels."""
    evaluation, views = stage.evaluation, stage.views
    address, split = evaluation.clips or stage.clips, evaluation.split or stage.split
    try:
        table, width = clips.table(address, split), num_features(stage)
    except USER_ERRORS as error:
        place = "evaluation: " if evaluation.clips is not None or evaluation.split is not None else ""
        return [Problem(f"{place}{error}")]
    problems = clips.check_extraction(
        address,
        split,
        modality=get_modality(stage.modality, flow_style=views.flow_style),
        length=views.length,
        stride=views.stride,
        num_windows=evaluation.windows or NUM_WINDOWS,
        num_features=width,
    )
    if (address, split) not in clips.measured:
        clips.measured[address, split] = []
        if is_labeled(table):
            linear = evaluation.protocol == "clean" and evaluation.probe == "protocol"
            clips.measured[address, split] = check_measurements(
                table,
                gallery=evaluation.gallery,
                query=evaluation.query,
                allow_shared_sources=evaluation.allow_shared_sources,
                linear=linear,
            )
        elif bool((table.labels >= 0).any()):
            unlabeled = int((table.labels < 0).sum())
            clips.measured[address, split] = [
                Problem(
                    f"{unlabeled:,} of {len(table):,} videos of {address} have no label: only what needs none is "
                    "measured",
                    "warning",
                )
            ]
    errors = [one for one in problems if one.severity == "error"]  # short videos are told by the training's check
    return [*errors, *clips.measured[address, split]]


def num_features(stage: Stage) -> int:
    """Return the width of the stage's features; an upper estimate where only its weights file says it."""
    encoder = stage.config.encoder if stage.config is not None else stage.spec.random
    return meta_encoder(encoder).num_features if encoder is not None else WIDEST


def _check_space(waiting: Sequence[Stage], clips: PlanClips, *, parallel: int) -> list[Problem]:
    """Check the disk for all stages together, and the memory for those that run side by side."""
    disk, memory = 0.0, []
    for stage in waiting:
        evaluation = stage.evaluation
        table = clips.table(evaluation.clips or stage.clips, evaluation.split or stage.split)
        windows = evaluation.windows or NUM_WINDOWS
        disk += features_bytes(len(table), num_windows=windows, num_features=num_features(stage))
        if stage.config is not None:
            footprint, summary = estimate_footprint(stage.config), clips.videos.of(stage.config)
            disk += checkpoint_bytes(stage.config, footprint, stage.folder)
            memory.append(footprint.bank + cache_bytes(stage.config, summary.rgb_bytes, summary.flow_bytes))
    together = sum(sorted(memory)[-parallel:])
    folder = Path(waiting[0].folder).parent
    problems = check_disk(folder, disk, f"checkpoints and features of {len(waiting)} stages")
    if parallel > 1:
        problems += check_memory(together, f"memory banks and cached clips of {parallel} stages side by side")
    return problems
