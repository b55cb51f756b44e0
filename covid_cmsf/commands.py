"""The commands `learn`, `train`, `cotrain`, `extract` and `evaluate retrieval` as functions."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from covid_cmsf import exit_codes
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.factory import open_clips
from covid_cmsf.config import config_name, find_config, load_config
from covid_cmsf.cotrain import run as plans
from covid_cmsf.cotrain.table import Row
from covid_cmsf.devices import choose_device
from covid_cmsf.evaluation.features import extract as extraction
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.inference import evaluation_mode
from covid_cmsf.evaluation.features.model import load_eval_model, wrap_encoder
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.stale import load_current_features
from covid_cmsf.evaluation.retrieval import RetrievalResult, evaluate_retrieval
from covid_cmsf.projects.estimate import parse_time
from covid_cmsf.projects.learn import LearnResult
from covid_cmsf.projects.learn import learn as run_learn
from covid_cmsf.projects.opening import Options
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.run import run_training
from covid_cmsf.training.run_dir import CONFIG_FILE


def extract_features(
    model: nn.Module | Path | str,
    clips: Clips | Path | str,
    out: Path | str,
    *,
    branch: str | None = None,
    modality: str | None = None,
    windows: int | None = None,
    protocol: str = "clean",
    split: str | None = None,
    batch_size: int | None = None,
    num_workers: int = 0,
    device: torch.device | str = "auto",
    precision: str = "fp32",
    replace: bool = False,
) -> Features:
    """Write the features of all videos of a split to `out` and return them: `covid-cmsf extract`.

    A file that already holds exactly these features is only read, and a killed extraction resumes. Videos that cannot
    be read are in `skipped`.

    Args:
        model: a checkpoint, or an encoder in memory with `metadata`.
        clips: clips, or where `open_clips` finds them.
        out: the features file to write.
        branch: online (default), target or guide, for a checkpoint.
        modality: for weights that do not say which they were trained on.
        windows: clips per video; 4 when left out.
        protocol: clean, or coclr as Han et al. (2020) measured.
        split: name of the split; the first one when left out.
        batch_size: windows that pass the network together: 16, or 128 images.
        num_workers: processes that decode; 0 decodes in this one.
        device: auto, cpu, cuda, cuda:1, ...
        precision: fp32, bf16 or fp16.
        replace: overwrite a file of other features.

    Example:
        >>> features = cc.extract_features("encoder.safetensors", "clips/ucf101", "rgb.safetensors")
        >>> len(features.features) == len(features.videos)
        True
    """
    eval_model = wrap_encoder(model) if isinstance(model, nn.Module) else load_eval_model(model, branch=branch)
    with evaluation_mode(eval_model.network):
        return extraction.extract_features(
            eval_model,
            clips if isinstance(clips, Clips) else open_clips(clips),
            Path(out),
            eval_protocol=build_eval_protocol(
                eval_model.metadata, protocol=protocol, modality=modality, num_windows=windows
            ),
            split=split,
            batch_size=batch_size,
            num_workers=num_workers,
            device=choose_device(str(device)),
            precision=precision,
            replace=replace,
        )


def retrieval(
    features: Features | Path | str,
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    seed: int = 0,
) -> RetrievalResult:
    """Return R@1, 5, 10, 20 and 50 in percent, with intervals: `covid-cmsf evaluate retrieval`.

    Args:
        features: a features file, or what `extract_features` or `load_features` returned. A file whose checkpoint or
            videos have changed since is refused.
        gallery: the subset whose videos are found.
        query: the subset whose videos search.
        centering: what is subtracted before the cosine; the protocol's own when left out.
        allow_shared_sources: count sibling clips of one source as hits, instead of refusing the split.
        seed: of the fit/val cut and of the intervals.

    Example:
        >>> result = cc.retrieval("rgb.safetensors")
        >>> print(f"R@1 {result.recall[1]:.1f}, chance {result.chance:.1f}")
        R@1 ..., chance ...
    """
    return evaluate_retrieval(
        features if isinstance(features, Features) else load_current_features(features),
        gallery=gallery,
        query=query,
        centering=centering,
        allow_shared_sources=allow_shared_sources,
        seed=seed,
    )


def train(
    config: TrainConfig | Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: Path | str | None = None,
    accept_changes: bool = False,
) -> Path:
    """Train an encoder, or resume a run, and return the run's folder: `covid-cmsf train`.

    Args:
        config: a configuration's name or file, the folder of a run to resume, or a `TrainConfig`.
        overrides: settings that replace the file's, with dots: `{"clips": "clips/ucf101", "schedule.epochs": 20}`.
        out: folder of the run; `runs/` and the configuration's name when left out.
        accept_changes: resume although settings have changed.

    Raises:
        KeyboardInterrupt: the run was stopped by a signal, after the step was finished and saved. Call again to resume.

    Example:
        >>> run = cc.train("infonce", {"clips": "clips/ucf101", "modality": "flow"})  # doctest: +SKIP
        >>> encoder = cc.load_encoder(run)  # doctest: +SKIP
    """
    if isinstance(config, TrainConfig):
        if overrides or out is None:
            raise ValueError("a TrainConfig needs `out`, and takes no overrides: use model_copy")
        settings, name = config, ""
    else:
        is_run = (Path(config) / CONFIG_FILE).is_file()
        path = Path(config) / CONFIG_FILE if is_run else find_config("runs", config)
        settings, name = load_config(TrainConfig, path, _override_texts(overrides)), config_name("runs", path)
        out = config if is_run and out is None else out
    folder = Path("runs") / name if out is None else Path(out)
    if run_training(settings, folder, accept_changes=accept_changes) == "stopped":
        raise KeyboardInterrupt(f"{folder} was stopped; the same call resumes it")
    return folder


def run_plan(
    plan: Path | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: Path | str | None = None,
    only: str | None = None,
    start: str | None = None,
    parallel: int = 1,
    num_processes: int = 1,
    reuse: Sequence[Path | str] = (),
) -> list[Row]:
    """Run a plan of stages or rounds, as far as it is not done, and return its table: `covid-cmsf cotrain`.

    Args:
        plan: a plan's name or file.
        overrides: settings that replace the plan's, with dots: `{"rounds": 1, "defaults.batch_size": 64}`.
        out: folder of the plan; `runs/` and the file's name when left out.
        only: run this stage alone.
        start: run the stages from this one on.
        parallel: stages side by side, each on GPUs of its own.
        num_processes: processes of each stage.
        reuse: folders of other plans; their finished stages with the same settings and clips are copied.

    Raises:
        RuntimeError: a stage failed; its folder has the log.
        KeyboardInterrupt: the plan was stopped by a signal. Call again to resume.

    Example:
        >>> rows = cc.run_plan("demo", {"rounds": 1})  # doctest: +SKIP
    """
    path = find_config("plans", plan)
    folder = Path(out) if out is not None else Path("runs") / config_name("plans", path)
    code, rows = plans.run_plan(
        plans.load_plan(path, _override_texts(overrides)),
        folder,
        plan_dir=path.parent,
        only=only,
        start=start,
        parallel=parallel,
        num_processes=num_processes,
        reuse=[Path(folder) for folder in reuse],
    )
    if code == exit_codes.INTERRUPTED:
        raise KeyboardInterrupt(f"{folder} was stopped; the same call resumes it")
    if code == exit_codes.FAILED:
        raise RuntimeError(f"a stage of {path} failed; the logs are in {folder}")
    return rows


def learn(
    videos: Path | str,
    out: Path | str,
    *,
    time: str | None = None,
    retrain: bool = False,
    labels: Path | str | None = None,
    layout: str | None = None,
    source_pattern: str | None = None,
    image: str | None = None,
    guide: str | None = None,
    short_edge: int | None = None,
    device: str = "auto",
    workers: int | None = None,
    seed: int | None = None,
) -> LearnResult:
    """Learn from a folder of videos without labels, and index them: `covid-cmsf learn`.

    The same call resumes after a stop, takes in videos that were added to the folder, and leaves out those that are
    gone; the plan is trained once. What is left out is as the project has it, or a default.

    Args:
        videos: folder of video files, also in subfolders.
        out: folder of the project.
        time: fit the training into a time, all in all: 30m, 2h, 1h30m.
        retrain: train once more, on all videos that are there now, from the present weights.
        labels: CSV file with columns file,label[,source], for measures; never used in training.
        layout: flat, or folder: the first folder below `videos` is the class.
        source_pattern: regular expression on the path whose first group names the footage of a clip.
        image: timm:NAME or timm:NAME?weights=FILE, an image network to search by as well; none: without it.
        guide: a network that guides both: timm:NAME?weights=FILE, torchvision:NAME?weights=FILE or transformers:FOLDER.
        short_edge: pixels of the stored clips.
        device: auto, cpu, cuda, ...
        workers: processes that convert videos.
        seed: of the training.

    Raises:
        ValueError: too few videos, a folder with other files, too little time, ...: before anything is written.
        KeyboardInterrupt: stopped by a signal. Call again to resume.

    Example:
        >>> result = cc.learn("videos", "project", time="2h")  # doctest: +SKIP
        >>> result.measures["rgb"].unlabeled.window_r1  # doctest: +SKIP
    """
    options = Options(
        layout=layout,
        labels=None if labels is None else Path(labels),
        source_pattern=source_pattern,
        short_edge=short_edge,
        seed=seed,
        image=image,
        guide=guide,
        device=device,
        workers=workers,
        seconds=None if time is None else parse_time(time),
        retrain=retrain,
    )
    return run_learn(Path(videos), Path(out), options)


def _override_texts(overrides: Mapping[str, Any] | None) -> list[str]:
    return [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
