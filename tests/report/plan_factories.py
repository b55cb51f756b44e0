"""Folders of plans as `covid-cmsf cotrain` leaves them, written in a moment: nothing is trained."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.records import (
    ClipRecord,
    Failure,
    FlowInfo,
    StoreInfo,
    clip_path,
    info_to_json,
    write_failures,
    write_manifest,
    write_split,
)
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.cotrain.answers import write_answers
from covid_cmsf.cotrain.graph import Stage, repetition_name
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.cotrain.run import build_graphs, write_results
from covid_cmsf.cotrain.stage import videos_fingerprint, write_stage_key, write_stage_result
from covid_cmsf.evaluation.features.file import Features, save_features
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.probes.linear import measure_linear
from covid_cmsf.evaluation.retrieval import measure_retrieval
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.run_dir import log_environment, write_config
from tests.evaluation.factories import synthetic_features
from tests.factories import make_image_folder, moving_square, write_video

ODD = ['<b>"bold" & co', "it's ünïcode 世界", "</script><script>alert(1)", "$math$ {x} %7B"]
NUM_FRAMES = 12
QUALITY = {"start": 3.0, "control": 2.5, "round": 1.8}  # noise of the features


def make_clips(root: Path, *, num_classes: int = 4, num_sources: int = 6, failures: int = 2) -> Path:
    """A clip store with the videos of `synthetic_features`, renamed; returns its folder."""
    features = synthetic_features(num_classes, num_sources)
    records = records_of(features)
    for number, record in enumerate(records):
        frames = moving_square(NUM_FRAMES, width=48, height=36, seed=number)
        write_video(clip_path(root, "rgb", record.video_id), frames)
        both = np.concatenate([frames[1:], frames[1:]], axis=1)  # x above y
        write_video(clip_path(root, "flow", record.video_id), both)
    flow = FlowInfo(backend="synthetic", version="1", parameters={}, bound=20.0)
    info = StoreInfo(modalities=("rgb", "flow"), short_edge=36, max_frames=0, quality=18, flow=flow)
    (root / "store.json").write_text(info_to_json(info), encoding="utf-8")
    write_manifest(root / "manifest.csv", records)
    (root / "splits").mkdir()
    write_split(
        root / "splits" / "1.csv", {r.video_id: p for r, p in zip(records, features.videos.subsets, strict=True)}
    )
    write_failures(
        root / "failures.csv", [Failure(f"{ODD[0]}/{i}", "decode", "<i>broken</i>") for i in range(failures)]
    )
    assert len(ClipStore.open(root).records) == len(records)
    return root


def records_of(features: Features) -> list[ClipRecord]:
    """The videos of made-up features under odd names."""
    classes = [ODD[i] if i < len(ODD) else f"class{i}" for i in range(len(features.videos.class_names))]
    records = []
    for number, label in enumerate(features.videos.labels.tolist()):
        folder = classes[label].replace("/", "_")
        name = f"{folder}/v{number:05d} {ODD[number % 2]}"
        source = features.videos.sources[number]
        records.append(ClipRecord(name, source, classes[label], label, NUM_FRAMES, NUM_FRAMES - 1, 25.0, 48, 36, ""))
    return records


def features_of(noise: float, seed: int, *, num_classes: int = 4, num_sources: int = 6, size: int = 16) -> Features:
    """Made-up features of the videos of `make_clips`."""
    features = synthetic_features(num_classes, num_sources, noise=noise, seed=seed, num_values=size)
    return replace(features, videos=VideoTable.from_records(records_of(features), features.videos.subsets))


def plan_config(clips: Path, **more: Any) -> PlanConfig:
    """One round and a control."""
    values = {
        "defaults": {
            "clips": str(clips),
            "encoder": "s3d_tiny",
            "batch_size": 4,
            "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False},
        },
        "rounds": 1,
        "first": "rgb",
        "pretrain": {"method": {"name": "infonce", "bank_size": 16}, "schedule": {"epochs": 6}},
        "cmsf": {"method": {"name": "cmsf", "num_candidates": 4, "k": 2, "bank_size": 16}, "schedule": {"epochs": 3}},
        "controls": ["msf"],
        "baselines": ["chance"],
    }
    return PlanConfig.model_validate({**values, **more})


def make_plan(out: Path, clips: Path, *, done: Sequence[str] | None = None, sizes: Any = None, **more: Any) -> Path:
    """The folder of a plan of which only the stages `done` (all by default) have been done; returns it."""
    plan = plan_config(clips, **more)
    out.mkdir(parents=True, exist_ok=True)
    (out / "plan.json").write_text(plan.model_dump_json(indent=1), encoding="utf-8")
    graphs = build_graphs(plan, out, plan_dir=out)
    for (split, seed), stages in zip(plan.repetitions, graphs, strict=True):
        assert stages[0].folder.parent == out / repetition_name(seed, split)
        for stage in stages:
            if done is None or stage.name in done:
                finish_stage(stage, sizes or {})
    if done is None:
        write_results(plan, graphs, out)
    return out


def begin_stage(stage: Stage, *, num_lines: int) -> None:
    """Its folder after so many lines of metrics."""
    assert stage.config is not None
    stage.folder.mkdir(parents=True, exist_ok=True)
    write_stage_key(stage.folder, stage.key)
    write_config(stage.folder, stage.config)
    if not (stage.folder / "environment.jsonl").exists():
        log_environment(stage.folder, {"device": "cpu", "processes": 1, "from_step": 0})
    lines = []
    for i in range(num_lines):
        values = {"step": 10 * (i + 1), "epoch": i // 4, "lr": 1e-3, "loss": 2.0 / (i + 1) + 0.1 * stage.seed}
        values |= {"effective_rank": 9.0 - 0.1 * i, "samples_per_s": 100.0 + i, "seconds": 1.5 * i, "purity_free": 0.4}
        if stage.spec.guides:
            values |= {"purity": 0.5 + 0.01 * i, "purity_candidates": 0.3, "agreement": 0.2}
        lines.append(json.dumps(values))
    (stage.folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def finish_stage(stage: Stage, sizes: dict[str, int]) -> None:
    """All that a done stage leaves, but for checkpoints."""
    begin_stage(stage, num_lines=12)
    kind = "round" if stage.spec.guides else "control" if stage.spec.init else "start"
    seed = 100 * stage.seed + stage.number
    features = features_of(QUALITY[kind], seed, **sizes)
    save_features(stage.folder / "features.safetensors", features)
    (retrieval, retrieval_hits), (linear, linear_hits) = measure_retrieval(features), measure_linear(features)
    write_answers(stage.folder, retrieval_hits, linear_hits)
    (stage.folder / "retrieval.json").write_text(json.dumps(asdict(retrieval)), encoding="utf-8")
    (stage.folder / "linear.json").write_text(json.dumps(asdict(linear)), encoding="utf-8")
    guides = {"guide_rgb": {"description": "synthetic", "sha256": "ab" * 32}} if stage.spec.guides else {}
    summary = {"progress": {"seconds": 20.0 + stage.number}, "guides": guides}
    (stage.folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (stage.folder / "checkpoints").mkdir(exist_ok=True)
    index = [{"file": "step-00000120.pt", "sha256": "cd" * 32, "epoch": 3}]
    (stage.folder / "checkpoints" / "index.json").write_text(json.dumps(index), encoding="utf-8")
    result = {"r1": retrieval.recall[1], "chance": retrieval.chance, "r1_interval": retrieval.interval[1]}
    result |= {"linear": linear.scores.top1, "effective_rank": retrieval.effective_rank, "seconds": 20.0 + stage.number}
    result |= {"num_classes": 4, "seconds_last_start": 30.0}
    result |= {"videos_sha256": videos_fingerprint(stage.clips, stage.modality)}
    write_stage_result(stage, result)


def make_image_run(root: Path) -> Path:
    """The folder of a run on images of which two fifths are labeled wrongly, with features; returns it."""
    images = make_image_folder(root / "set", train=20, test=6)
    run = root / "run"
    run.mkdir()
    config = {
        "clips": str(images),
        "modality": "frame",
        "encoder": "r10_small",
        "method": {"name": "xent"},
        "labels": {"noise": 0.4},
        "batch_size": 12,
        "schedule": {"epochs": 2},
    }
    write_config(run, TrainConfig.model_validate(config))
    clips = open_clips(images)
    subsets = [clips.splits["1"][record.video_id] for record in clips.records]
    like = synthetic_features(3, 2)
    rows = torch.eye(8)[torch.tensor([record.label for record in clips.records])]
    rows = rows + 0.5 * torch.randn(rows.shape, generator=torch.Generator().manual_seed(0))
    numbers = torch.arange(len(rows))
    features = replace(
        like,
        videos=VideoTable.from_records(clips.records, subsets),
        features=rows,
        windows=rows.clone(),
        window_videos=numbers,
        window_starts=0 * numbers,
    )
    save_features(run / "features.safetensors", features)
    return run
