"""Baselines without training: chance, color and flow histograms, random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from covid_cmsf.clips.base import Clips
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.model import EvalModel, create_histogram_model, create_random_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable, load_split, subset_indices
from covid_cmsf.evaluation.preflight import check_protocol, check_subsets, split_table
from covid_cmsf.evaluation.probes.linear import evaluate_linear
from covid_cmsf.evaluation.retrieval import RANKS, chance_recalls, evaluate_retrieval
from covid_cmsf.preflight import Problem, attempt


@dataclass(frozen=True)
class Baseline:
    """R@k and linear-probe accuracy of one baseline, in percent. Chance has neither features nor an interval."""

    name: str
    modality: str
    recall: dict[int, float]
    linear: float
    interval: tuple[float, float] | None = None  # of R@1
    effective_rank: float | None = None
    features: dict[str, Any] | None = None


@dataclass(frozen=True)
class BaselinesResult:
    """`skipped`: videos (id, subset, reason) that could not be read for at least one of the baselines."""

    protocol: str
    gallery: str
    query: str
    baselines: list[Baseline]
    skipped: list[tuple[str, str, str]]


def evaluate_baselines(
    clips: Clips,
    folder: Path,
    *,
    encoder: str = "s3d_tiny",
    protocol: str = "clean",
    split: str | None = None,
    gallery: str = "train",
    query: str = "test",
    seed: int = 0,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    on_baseline: Callable[[], None] = lambda: None,
) -> BaselinesResult:
    """Evaluate chance, color and flow histograms, and a random `encoder` per modality; features go to `folder`."""
    split_videos = load_split(clips, split)
    baselines = [chance(VideoTable.from_records(split_videos.records, split_videos.subsets), gallery, query, seed=seed)]
    skipped: dict[str, tuple[str, str, str]] = {}
    for name, eval_model in create_baseline_models(clips, encoder, seed):
        features = extract_features(
            eval_model,
            clips,
            folder / f"{name}.features",
            eval_protocol=build_eval_protocol(eval_model.metadata, protocol=protocol),
            split=split,
            num_workers=num_workers,
            device=device,
            replace=True,
        )
        skipped |= {entry[0]: entry for entry in features.skipped}
        retrieval = evaluate_retrieval(features, gallery=gallery, query=query, seed=seed)
        linear = evaluate_linear(features, gallery=gallery, query=query, seed=seed)
        baselines.append(
            Baseline(
                name=name,
                modality=features.provenance.eval_protocol.modality,
                recall=retrieval.recall,
                linear=linear.scores.top1,
                interval=retrieval.interval[1],
                effective_rank=retrieval.effective_rank,
                features=features.summary(),
            )
        )
        on_baseline()
    return BaselinesResult(protocol, gallery, query, baselines, list(skipped.values()))


def check_baselines(
    clips: Clips, *, encoder: str, protocol: str, split: str | None, gallery: str, query: str, seed: int, folder: Path
) -> list[Problem]:
    """Check what would stop `evaluate_baselines` later: encoder, protocol, split, labels, subsets, space."""
    problems: list[Problem] = []
    for _, eval_model in attempt(problems, lambda: create_baseline_models(clips, encoder, seed)) or []:
        metadata, num_features = eval_model.metadata, int(getattr(eval_model.network, "num_features", 0))
        eval_protocol = attempt(problems, lambda one=metadata: build_eval_protocol(one, protocol=protocol))  # type: ignore[misc]
        if eval_protocol is not None:
            problems += check_protocol(
                clips, eval_protocol, address=str(getattr(clips, "path", "")), split=split, num_features=num_features,
                out=folder / "features",
            )  # fmt: skip
    videos = attempt(problems, lambda: split_table(clips, split))
    if videos is not None:
        problems += check_subsets(
            videos, gallery, query, num_neighbors=(), linear=protocol != "coclr", allow_shared_sources=False,
            val_fraction=VAL_FRACTION, seed=seed,
        )  # fmt: skip
    return problems


def create_baseline_models(clips: Clips, encoder: str, seed: int) -> list[tuple[str, EvalModel]]:
    """Return (name, model) of each baseline, for the modalities that the clips have."""
    stored = [name for name in ("rgb", "flow") if name in clips.modalities]
    histograms = {"rgb": "color", "flow": "flow"}
    models = [(f"{histograms[name]}-histogram", create_histogram_model(histograms[name])) for name in stored]
    return models + [
        (f"random-{encoder}-{name}", create_random_model(encoder, modality=name, seed=seed)) for name in stored
    ]


def chance(
    videos: VideoTable, gallery: str, query: str, *, val_fraction: float = VAL_FRACTION, seed: int = 0
) -> Baseline:
    """Return the expected R@k of a random ranking, and the accuracy of always predicting the most frequent class."""
    gallery_indices, query_indices = (
        subset_indices(videos, name, val_fraction=val_fraction, seed=seed) for name in (gallery, query)
    )
    labels, gallery_labels = videos.labels[query_indices], videos.labels[gallery_indices]
    most_frequent = gallery_labels.bincount().argmax()
    return Baseline(
        name="chance",
        modality="",
        recall=chance_recalls(labels, gallery_labels, [k for k in RANKS if k <= len(gallery_labels)]),
        linear=100 * float((labels == most_frequent).double().mean()),
    )
