"""Checks of a training run before it starts: `covid-cmsf train`, its dry run, and every stage of a plan."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from covid_cmsf.clips.decoders import choose_decoder
from covid_cmsf.clips.records import get_column
from covid_cmsf.devices import choose_device
from covid_cmsf.exit_codes import USER_ERRORS
from covid_cmsf.methods.base import TargetMethodConfig
from covid_cmsf.methods.contrastive import CoClrConfig
from covid_cmsf.methods.mean_shift import Cmsf2qConfig, CmsfConfig, MeanShiftConfig
from covid_cmsf.preflight import Problem
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import select_held_out, training_records, visible_labels
from covid_cmsf.training.footprint import (
    cache_bytes,
    check_cache_dir,
    check_shared_memory,
    check_space,
    estimate_footprint,
)
from covid_cmsf.training.loggers import check_loggers
from covid_cmsf.training.weights_preflight import Planned, check_flow, check_weights
from covid_cmsf.views.modalities import Modality, get_modality
from covid_cmsf.views.preflight import check_clip_length, check_modalities, clips_opener

FILL_FRACTION = 0.1  # warn when filling the bank takes more of the run


@dataclass(frozen=True)
class VideoSummary:
    """What the checks need to know about the videos of a run."""

    num_videos: int
    num_labeled: int  # with a label that the method may see
    rgb_bytes: int  # decoded
    flow_bytes: int
    frame_pixels: int  # of the largest; 0 where they do not say
    problems: tuple[Problem, ...]  # of clips longer than the videos


class VideoSummaries:
    """Opens clips and summarizes the videos of a run, each once: the stages of a plan share them."""

    def __init__(self) -> None:
        self.open = clips_opener()
        self._summaries: dict[tuple[object, ...], VideoSummary] = {}

    def of(self, config: TrainConfig) -> VideoSummary:
        """Return the summary of a run; raise an error if there are no such clips, split or labels."""
        clips, views, modalities = self.open(config.clips), config.views, run_modalities(config)
        if config.runtime.knn_every_epochs:
            select_held_out(clips, config)
        names = tuple(modality.name for modality in modalities)
        key = (config.clips, config.split, config.subset, config.labels, names, views)
        if key not in self._summaries:
            records = training_records(clips, config, modalities)
            width, height, frames, flow = (
                np.array(get_column(records, name), dtype=np.int64)
                for name in ("width", "height", "num_frames", "num_flow")
            )
            self._summaries[key] = VideoSummary(
                num_videos=len(records),
                num_labeled=int((visible_labels(records, config.labels) >= 0).sum()),
                rgb_bytes=int((3 * width * height * frames).sum()),
                flow_bytes=int((2 * width * height * flow).sum()),
                frame_pixels=int((width * height).max()),
                problems=tuple(
                    check_clip_length(
                        records, modalities, length=views.length, stride=views.stride, pad_mode=views.pad_mode
                    )
                ),
            )
        return self._summaries[key]


def check_training(
    config: TrainConfig,
    *,
    folder: Path | None = None,
    planned: Planned | None = None,
    videos: VideoSummaries | None = None,
) -> list[Problem]:
    """Return all problems of a run that would write to `folder` (None: to none, as a dry run).

    `planned` describes weights that earlier stages of a plan will have written.
    """
    videos = videos or VideoSummaries()
    problems = check_runtime(config)
    if problems:
        return problems
    problems = [*check_weights(config, planned or {}), *check_neighbors(config)]
    try:
        footprint = estimate_footprint(config)
        clips, modalities = videos.open(config.clips), run_modalities(config)
        missing = check_modalities(clips, modalities, address=config.clips)
        if missing:
            return [*problems, *missing]
        problems += [] if problems else check_flow(config, planned or {}, clips)
        summary = videos.of(config)
    except USER_ERRORS as error:  # an unknown encoder, no clips, no such split, ...
        return [*problems, Problem(str(error))]
    return [
        *problems,
        *check_labels(config, summary),
        *summary.problems,
        *check_schedule(config, summary.num_videos),
        *check_space(config, footprint, cache_bytes(config, summary.rgb_bytes, summary.flow_bytes), folder),
        *check_cache_dir(config, clips, modalities, summary.rgb_bytes, summary.flow_bytes),
        *check_shared_memory(config, frame_pixels=summary.frame_pixels),
    ]


def run_modalities(config: TrainConfig) -> list[Modality]:
    """Return the modalities that a run reads: its own and those of its guides."""
    names = dict.fromkeys([config.modality, *(guide.modality for guide in config.guides)])
    return [get_modality(name, flow_style=config.views.flow_style) for name in names]


def check_runtime(config: TrainConfig) -> list[Problem]:
    """Check the device, the decoder, the loggers, and that the batch divides among the processes of torchrun."""
    problems = [Problem(message) for message in check_loggers(config.runtime.loggers)]
    for choose, name in ((choose_device, config.runtime.device), (choose_decoder, config.runtime.decoder)):
        try:
            choose(name)
        except ValueError as error:
            problems.append(Problem(str(error)))
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if config.batch_size % processes:
        problems.append(Problem(f"batch_size {config.batch_size} does not divide among {processes} processes"))
    return problems


# The method


def check_neighbors(config: TrainConfig) -> list[Problem]:
    """Check k <= n <= entries of the bank."""
    method, problems = config.method, []
    if isinstance(method, CoClrConfig) and method.top_k > method.bank_size:
        problems.append(Problem(f"method.top_k={method.top_k} is more than method.bank_size={method.bank_size}"))
    if not isinstance(method, MeanShiftConfig):
        return problems
    limits = {"method.bank_size": method.bank_size}
    if isinstance(method, CmsfConfig) and method.constraint == "two_bank":
        limits["method.labeled_bank_size"] = method.labeled_bank_size
    if isinstance(method, Cmsf2qConfig) or (isinstance(method, CmsfConfig) and method.uses_guides):
        candidates = method.num_candidates
        if candidates > method.bank_size:
            problems.append(
                Problem(f"method.num_candidates={candidates} (n) is more than method.bank_size={method.bank_size}")
            )
        union = isinstance(method, CmsfConfig) and method.combine == "union"
        limits["method.num_candidates (n)"] = candidates * (max(1, len(config.guides)) if union else 1)
    problems += [
        Problem(f"method.k={method.k} neighbors cannot be chosen among {name}={limit}")
        for name, limit in limits.items()
        if method.k != "all" and method.k > limit
    ]
    return problems


def check_labels(config: TrainConfig, videos: VideoSummary) -> list[Problem]:
    """Check that a method that learns from labels has some."""
    uses_labels = config.method.build(num_classes=1, embedding_dim=1).uses_labels
    if uses_labels and not videos.num_labeled:
        return [Problem(f"{config.method.name} learns from labels, and {config.clips} has none")]
    return []


def check_schedule(config: TrainConfig, num_videos: int) -> list[Problem]:
    """Check that an epoch has a step, and that the memory bank is filled early enough for the run to train."""
    batch_size, accumulate = config.batch_size, config.optimizer.accumulate
    batches = num_videos * config.repeat // batch_size
    if not batches:
        return [
            Problem(
                f"{num_videos * config.repeat} videos do not fill one batch of {batch_size}; use a smaller batch size "
                "(--batch-size), or repeat the data set (repeat=2)"
            )
        ]
    if batches < accumulate:
        return [Problem(f"an epoch has {batches} batches, fewer than optimizer.accumulate = {accumulate}")]
    if not isinstance(config.method, TargetMethodConfig):
        return []
    return check_bank_fill(config.method, config, batches // accumulate * accumulate * config.schedule.epochs)


def check_bank_fill(method: TargetMethodConfig, config: TrainConfig, num_batches: int) -> list[Problem]:
    """Check that the bank holds what the first loss waits for within the run, and within a tenth of it."""
    pushed = num_batches * config.batch_size
    run = f"the run of {config.schedule.epochs} epochs pushes {pushed:,}"
    epochs = _epochs_to_fill(config, num_batches)
    advice = f"set a smaller method.bank_size, or train for more epochs (--epochs {epochs})"
    waits_for = method.bank_size if isinstance(method, CoClrConfig) else method.warmup_entries
    before_loss = waits_for + (config.batch_size if _pushes_after(config) else 0)
    if waits_for and before_loss > pushed:
        what = "mines no positive" if method.warmup_entries < waits_for else "trains nothing"
        return [Problem(f"{method.name} {what} before the bank has {waits_for:,} entries, and {run}: {advice}")]
    if method.bank_size > pushed:
        return [Problem(f"the bank has {method.bank_size:,} entries, and {run}: it is never full; {advice}", "warning")]
    filling = -(-waits_for // config.batch_size) / num_batches
    if filling > FILL_FRACTION:
        return [
            Problem(
                f"{filling:.0%} of the run fills the bank, before {method.name} trains ({waits_for:,} entries, "
                f"{pushed:,} are pushed): {advice}",
                "warning",
            )
        ]
    return []


def _pushes_after(config: TrainConfig) -> bool:
    return config.method.build(num_classes=1, embedding_dim=1).push == "after"


def _epochs_to_fill(config: TrainConfig, num_batches: int) -> int:
    """Return the epochs with which filling the bank takes a tenth of the run."""
    assert isinstance(config.method, TargetMethodConfig)
    per_epoch = num_batches // config.schedule.epochs * config.batch_size
    return -(-int(config.method.bank_size / FILL_FRACTION) // per_epoch)
