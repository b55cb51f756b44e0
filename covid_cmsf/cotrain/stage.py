"""Run one stage: train (or load weights), extract features, evaluate. Every step can be interrupted and resumed.

A stage's folder has `stage.key` (hash of its inputs) from the start and `stage.json` (its result) once it is done.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from covid_cmsf import exit_codes
from covid_cmsf.clips import open_clips
from covid_cmsf.clips.fingerprint import files_fingerprint
from covid_cmsf.cores import available_cores
from covid_cmsf.cotrain.answers import FEATURES_FILE, write_answers
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.linear import stage_linear
from covid_cmsf.devices import choose_device
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.evaluation.features.model import EvalModel, create_histogram_model, create_random_model, load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.label_free import label_free_measures
from covid_cmsf.evaluation.preflight import is_labeled
from covid_cmsf.evaluation.retrieval import measure_retrieval
from covid_cmsf.files import read_json, read_text, write_text_atomic
from covid_cmsf.logs import add_text_file, setup_logging
from covid_cmsf.training.config import RuntimeConfig, TrainConfig
from covid_cmsf.training.data import resolve_workers
from covid_cmsf.training.run import run_training, set_threads
from covid_cmsf.training.run_dir import write_config
from covid_cmsf.training.signals import SIGNALS, TORCHRUN_OPTIONS
from covid_cmsf.views.modalities import get_modality

logger = logging.getLogger(__name__)
ERROR_FILE = "error.txt"  # in the folder of a stage that failed: why


def run_stage(stage: Stage, slot: str, *, num_processes: int = 1, num_slots: int = 1) -> None:
    """Run a stage in its own process and exit with a code. `slot` is cpu#1, cuda:0, cuda:0,1, ..."""
    setup_logging(quiet=True)
    start = time.monotonic()
    runtime = stage_runtime(stage, slot, num_processes=num_processes, num_slots=num_slots)
    set_threads(runtime)
    (stage.folder / ERROR_FILE).unlink(missing_ok=True)
    try:
        if stage.config is not None:
            status = _train(stage, stage.config.model_copy(update={"runtime": runtime}), slot, num_processes)
            if status == "stopped":
                sys.exit(exit_codes.INTERRUPTED)
        add_text_file(stage.folder / "log.txt")
        result = evaluate_stage(stage, runtime, evaluation_devices(stage, slot))
    except (ValueError, RuntimeError, OSError) as error:
        add_text_file(stage.folder / "log.txt")
        write_text_atomic(stage.folder / ERROR_FILE, " ".join(str(error).split()) + "\n")
        logger.error("stage %s: %s", stage.name, error)
        logger.debug("traceback", exc_info=True)  # for log.txt
        sys.exit(exit_codes.FAILED)
    write_stage_result(stage, {**result, "seconds_last_start": time.monotonic() - start})


def stage_runtime(stage: Stage, slot: str, *, num_processes: int, num_slots: int) -> RuntimeConfig:
    """Return the stage's runtime in a slot: a configured device stays, the cores are divided among the slots.

    Threads are half of its cores, as in `set_threads`: their number changes the last bits, that of workers does not.
    """
    device = stage.runtime.device
    if device in ("auto", "cuda"):
        device = slot.partition("#")[0] if num_processes == 1 else slot.partition(":")[0].partition("#")[0]
    cores = available_cores() // num_slots
    threads = stage.runtime.threads or max(1, cores // num_processes // 2)
    workers = resolve_workers(stage.runtime.workers, device, num_slots=num_slots, num_processes=num_processes)
    return stage.runtime.model_copy(update={"device": device, "threads": threads, "workers": workers})


def evaluation_devices(stage: Stage, slot: str) -> list[str]:
    """Return the devices that measure a stage: those of its own slot, as others train in the other slots."""
    device = stage.runtime.device
    if device not in ("auto", "cuda"):
        return [device]
    kind, _, numbers = slot.partition("#")[0].partition(":")
    return [f"{kind}:{number}" for number in numbers.split(",")] if numbers else [kind]


def _train(stage: Stage, config: TrainConfig, slot: str, num_processes: int) -> str:
    """Train, and return "finished" or "stopped".

    Changed paths are accepted on resume: the stage's key has already shown that the configuration is the same.
    """
    if num_processes == 1:
        return run_training(config, stage.folder, accept_changes=True)
    write_config(stage.folder, config)
    gpus = slot.partition(":")[2] if slot.startswith("cuda") else None
    return launch_torchrun(stage.folder, num_processes=num_processes, gpus=gpus)


def evaluate_stage(stage: Stage, runtime: RuntimeConfig, devices: Sequence[str]) -> dict[str, Any]:
    """Measure the stage's encoder; write its features and results.

    What needs no labels is measured in any case; with labels also R@1 and linear accuracy, in percent.
    """
    evaluation = stage.evaluation
    eval_model = load_stage_model(stage)
    eval_protocol = build_eval_protocol(
        eval_model.metadata,
        protocol=evaluation.protocol,
        modality=stage.modality,
        num_windows=evaluation.windows,
        length=stage.views.length if stage.spec.histogram else None,
        stride=stage.views.stride if stage.spec.histogram else None,
    )
    clips, chosen = open_clips(evaluation.clips or stage.clips), [choose_device(name) for name in devices]
    features = extract_features(
        eval_model,
        clips,
        stage.folder / FEATURES_FILE,
        eval_protocol=eval_protocol,
        split=evaluation.split or stage.split,
        device=chosen,
        num_workers=resolve_workers(runtime.workers, chosen[0]),
        replace=True,
    )
    result = {
        "seconds": _training_seconds(stage),
        "num_videos": len(features.videos),
        "videos_sha256": features.provenance.videos_sha256,
        "skipped": [list(entry) for entry in features.skipped],
        **_label_free_result(stage, features),
    }
    if not is_labeled(features.videos):
        return result
    subsets: dict[str, Any] = {
        "gallery": evaluation.gallery,
        "query": evaluation.query,
        "allow_shared_sources": evaluation.allow_shared_sources,
    }
    retrieval, retrieval_hits = measure_retrieval(features, **subsets)
    linear, linear_hits = stage_linear(
        stage,
        eval_model,
        features,
        clips,
        eval_protocol=eval_protocol,
        num_workers=resolve_workers(runtime.workers, chosen[0]),
        devices=chosen,
        **subsets,
    )
    _write_json(stage.folder / "retrieval.json", asdict(retrieval))
    _write_json(stage.folder / "linear.json", asdict(linear))
    write_answers(stage.folder, retrieval_hits, linear_hits)
    return result | {
        "r1": retrieval.recall[1],
        "chance": retrieval.chance,
        "r1_interval": asdict(retrieval)["interval"][1],
        "linear": linear.scores.top1,
        "num_classes": int(features.videos.labels.unique().numel()),
        "num_query": retrieval.num_query,
    }


def _label_free_result(stage: Stage, features: Features) -> dict[str, Any]:
    """Return what needs no labels; neighbors are compared with those of the stage's guides."""
    guides = [stage.folder.parent / name / FEATURES_FILE for name in stage.spec.guides]
    measures = label_free_measures(features, [load_features(path) for path in guides if path.is_file()])
    _write_json(stage.folder / "unlabeled.json", asdict(measures))
    agreement = [one.percent for one in measures.agreement]
    return {
        "effective_rank": measures.effective_rank,
        "window_r1": measures.window_r1,
        "window_chance": measures.window_chance,
        "source_r1": measures.source_r1,
        "source_chance": measures.source_chance,
        "agreement": sum(agreement) / len(agreement) if agreement else None,
    }


def _training_seconds(stage: Stage) -> float | None:
    """Return the seconds spent in training, summed over all resumes; None if nothing was trained."""
    path = stage.folder / "summary.json"
    return float(json.loads(read_text(path))["progress"]["seconds"]) if path.is_file() else None


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_text_atomic(path, json.dumps(values, indent=1) + "\n")


def load_stage_model(stage: Stage) -> EvalModel:
    """Load the encoder to evaluate: trained, from a weights file, with random weights, or a histogram."""
    if stage.spec.histogram is not None:
        return create_histogram_model(stage.spec.histogram)
    if stage.spec.random is not None:
        seen = get_modality(stage.modality)
        length = 1 if seen.single_frame else stage.views.length
        _, size = stage.views.view_shape(seen)
        return create_random_model(
            stage.spec.random,
            modality=stage.modality,
            seed=stage.seed,
            input_size=(length, size, size),
            stride=stage.views.stride,
        )
    return load_eval_model(Path(stage.checkpoint), branch=stage.spec.branch)


# State of a stage's folder

STAGE_RESULT = "stage.json"


def read_stage_key(folder: Path) -> str | None:
    """Return the key that the folder was started with; None if there is none."""
    path = folder / "stage.key"
    return read_text(path).strip() if path.is_file() else None


def write_stage_key(folder: Path, key: str) -> None:
    """Store the key before the stage starts."""
    write_text_atomic(folder / "stage.key", key + "\n")


def write_stage_result(stage: Stage, result: dict[str, Any]) -> None:
    """Store the result: the last action of a stage."""
    values = {"key": stage.key, "evaluation": stage.evaluation.model_dump(mode="json"), **result}
    write_text_atomic(stage.folder / STAGE_RESULT, json.dumps(values, indent=1) + "\n")


def read_stage_result(stage: Stage) -> dict[str, Any] | None:
    """Return the stage's result; None if it is not done, or of another configuration, evaluation or video files."""
    path = stage.folder / STAGE_RESULT
    if not path.is_file():
        return None
    try:
        result = read_json(path)
    except ValueError:
        return None
    if not isinstance(result, dict):
        return None
    same = stage.has_key(result.get("key")) and result.get("evaluation") == stage.evaluation.model_dump(mode="json")
    if not same:
        return None
    clips = stage.evaluation.clips or stage.clips
    return result if not clips or result.get("videos_sha256") == videos_fingerprint(clips, stage.modality) else None


@cache
def videos_fingerprint(clips: str, modality: str) -> str:
    """Return the fingerprint of the files that a modality reads, computed once: a plan asks for it many times."""
    opened = open_clips(clips)
    return files_fingerprint(opened, opened.records, (get_modality(modality).stored_modality,))


def is_done(stage: Stage) -> bool:
    """Whether the stage has a result for its present configuration."""
    return read_stage_result(stage) is not None


# Several processes: a torchrun child that receives the stage's signals and never outlives it

GRACE = 60.0  # seconds to save a checkpoint and exit

_launched: list[subprocess.Popen[bytes]] = []


def launch_torchrun(folder: Path, *, num_processes: int, gpus: str | None) -> str:
    """Train the run configured in `folder`; return "finished" or "stopped".

    `gpus` is a list such as `0,1`, counted among the GPUs that this process sees.
    """
    options = ["-m", "torch.distributed.run", f"--nproc-per-node={num_processes}", "--standalone", *TORCHRUN_OPTIONS]
    environment = dict(os.environ)
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = mask_gpus(gpus, environment.get("CUDA_VISIBLE_DEVICES"))
    # absolute: a name that begins with a dash would be read as an option
    command = [sys.executable, *options, "-m", "covid_cmsf", "train", str(folder.absolute()), "--accept-changes"]
    stop_requested = False

    def forward_signal(number: int, frame: FrameType | None) -> None:
        nonlocal stop_requested
        stop_requested = True
        process.send_signal(signal.SIGTERM)

    process = subprocess.Popen(command, env=environment, start_new_session=True)
    _launched.append(process)
    before = {number: signal.signal(number, forward_signal) for number in SIGNALS}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _launched.remove(process)
    if code == 0:
        return "finished"
    if stop_requested:  # torchrun does not pass on the exit code of its processes
        return "stopped"
    raise RuntimeError(f"torchrun ended with exit code {code}; see {folder / 'log.txt'}")


def mask_gpus(gpus: str, mask: str | None) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for `gpus` (such as `0,1`), counted within the user's own mask.

    A mask lists numbers or UUIDs; None: there is no mask.
    """
    if not mask:
        return gpus
    visible = [name.strip() for name in mask.split(",")]
    return ",".join(visible[int(number)] for number in gpus.split(","))


def terminate_launched() -> None:
    """Terminate the torchrun children, then kill those that do not exit. For when the plan's process has died."""
    for process in _launched:
        process.terminate()
    for process in _launched:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
