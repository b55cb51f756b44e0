"""What happens inside a stage: train (or take weights), extract features, measure. All of it can be interrupted."""

import json
import logging
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from covid_cmsf import exit_codes
from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.clips import open_clips
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage_files import write_result
from covid_cmsf.cotrain.torchrun import launch
from covid_cmsf.devices import choose_device
from covid_cmsf.evaluation.extraction import extract_features
from covid_cmsf.evaluation.linear import evaluate_linear
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from covid_cmsf.evaluation.showing import showing_for
from covid_cmsf.evaluation.subjects import Subject, histogram_subject, random_subject, subject_from
from covid_cmsf.logs import add_text, setup_logging
from covid_cmsf.models.spectrum import effective_rank
from covid_cmsf.training.run import run_training, set_threads
from covid_cmsf.training.run_folder import write_config
from covid_cmsf.training.settings import RuntimeSettings, TrainSettings

logger = logging.getLogger(__name__)


def do_stage(stage: Stage, place: str, *, num_processes: int = 1, num_places: int = 1) -> None:
    """Runs in the stage's own process, and ends it with an exit code. `place` is cpu#1, cuda:0, cuda:0,1, ..."""
    setup_logging(quiet=True)
    start = time.monotonic()
    runtime = runtime_in(stage, place, num_processes=num_processes, num_places=num_places)
    set_threads(runtime)
    try:
        if stage.settings is not None:
            outcome = _train(stage, stage.settings.model_copy(update={"runtime": runtime}), place, num_processes)
            if outcome == "stopped":
                sys.exit(exit_codes.INTERRUPTED)
        add_text(stage.folder / "log.txt")
        result = measure(stage, runtime)
    except (ValueError, RuntimeError, OSError) as error:
        add_text(stage.folder / "log.txt")
        logger.error("stage %s: %s", stage.name, error)
        logger.debug("where it happened", exc_info=True)  # for log.txt
        sys.exit(exit_codes.FAILED)
    write_result(stage, {**result, "seconds_last_start": time.monotonic() - start})


def runtime_in(stage: Stage, place: str, *, num_processes: int, num_places: int) -> RuntimeSettings:
    """The stage's runtime in a place: a device that the settings name is kept, cores are shared among places."""
    device = stage.runtime.device
    if device == "auto":
        device = place.partition("#")[0] if num_processes == 1 else place.partition(":")[0].partition("#")[0]
    cores = len(os.sched_getaffinity(0)) // num_places
    threads = stage.runtime.threads or max(1, cores // num_processes - stage.runtime.workers)
    return stage.runtime.model_copy(update={"device": device, "threads": threads})


def _train(stage: Stage, settings: TrainSettings, place: str, num_processes: int) -> str:
    """The stage's key proves that an earlier beginning is of these settings, wherever its files were then."""
    if num_processes == 1:
        return run_training(settings, stage.folder, accept_changes=True)
    write_config(stage.folder, settings)
    gpus = place.partition(":")[2] if place.startswith("cuda") else None
    return launch(stage.folder, num_processes=num_processes, gpus=gpus)


def measure(stage: Stage, runtime: RuntimeSettings) -> dict[str, Any]:
    """R@k and linear accuracy of the stage's encoder; the features stay in its folder."""
    chosen, evaluation = choose_device(runtime.device), stage.evaluation
    subject = subject_of(stage)
    showing = showing_for(
        subject.card,
        protocol=evaluation.protocol,
        modality=stage.modality,
        num_windows=evaluation.windows,
        length=stage.views.length if stage.chosen.histogram else None,
        stride=stage.views.stride if stage.chosen.histogram else None,
    )
    features = extract_features(
        subject,
        open_clips(evaluation.clips or stage.clips),
        stage.folder / "features.safetensors",
        showing=showing,
        split=evaluation.split or stage.split,
        device=chosen,
        num_workers=runtime.workers,
        replace=True,
    )
    retrieval = evaluate_retrieval(features, gallery=evaluation.gallery, query=evaluation.query)
    linear = evaluate_linear(features, gallery=evaluation.gallery, query=evaluation.query, probe=evaluation.probe)
    _write_json(stage.folder / "retrieval.json", asdict(retrieval))
    _write_json(stage.folder / "linear.json", asdict(linear))
    labels = features.videos.labels[features.videos.labels >= 0]
    return {
        "r1": retrieval.recall[1],
        "chance": retrieval.chance,
        "r1_interval": asdict(retrieval)["interval"][1],
        "linear": linear.scores.top1,
        "effective_rank": effective_rank(features.features),
        "num_classes": int(labels.unique().numel()),
        "seconds": _training_seconds(stage),
    }


def _training_seconds(stage: Stage) -> float | None:
    """Time spent in training, over all starts of the stage."""
    path = stage.folder / "summary.json"
    return float(json.loads(path.read_text(encoding="utf-8"))["progress"]["seconds"]) if path.is_file() else None


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_text_atomic(path, json.dumps(values, indent=1) + "\n")


def subject_of(stage: Stage) -> Subject:
    """The network that the stage made, took, or was told to invent."""
    if stage.chosen.histogram is not None:
        return histogram_subject(stage.chosen.histogram)
    if stage.chosen.random is not None:
        size = stage.views.frame_size if stage.modality == "frame" else stage.views.size
        length = 1 if stage.modality == "frame" else stage.views.length
        return random_subject(
            stage.chosen.random,
            modality=stage.modality,
            seed=stage.seed,
            input_size=(length, size, size),
            stride=stage.views.stride,
        )
    return subject_from(Path(stage.checkpoint), part=stage.chosen.part)
