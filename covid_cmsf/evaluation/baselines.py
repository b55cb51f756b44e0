"""What costs nothing: chance, histograms, random weights. Without them beside it a result proves little."""

# k rank

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.clips.interface import Clips
from covid_cmsf.evaluation.extraction import extract_features
from covid_cmsf.evaluation.linear import evaluate_linear
from covid_cmsf.evaluation.parts import VAL_SHARE, part_rows
from covid_cmsf.evaluation.retrieval import RANKS, evaluate_retrieval
from covid_cmsf.evaluation.showing import showing_for
from covid_cmsf.evaluation.split import split_videos
from covid_cmsf.evaluation.subjects import Subject, histogram_subject, random_subject
from covid_cmsf.evaluation.videos import Videos


@dataclass(frozen=True)
class Baseline:
    """One row: R@k and top-1 of a linear probe, in percent. Chance has neither features nor intervals."""

    name: str
    modality: str
    recall: dict[int, float]
    linear: float
    interval: tuple[float, float] | None = None  # of R@1
    effective_rank: float | None = None
    features: dict[str, Any] | None = None


@dataclass(frozen=True)
class BaselinesResult:
    """`set_aside`: videos (id, part, reason) that could not be read for one of the baselines at least."""

    protocol: str
    gallery: str
    query: str
    baselines: list[Baseline]
    set_aside: list[tuple[str, str, str]]


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
    """Chance, histograms of color and flow, and `encoder` with random weights on both; features stay in `folder`."""
    listed = split_videos(clips, split)
    rows = [chance(Videos.of(listed.records, listed.parts), gallery, query, seed=seed)]
    aside: dict[str, tuple[str, str, str]] = {}
    for name, subject in baseline_subjects(clips, encoder, seed):
        features = extract_features(
            subject,
            clips,
            folder / f"{name}.features",
            showing=showing_for(subject.card, protocol=protocol),
            split=split,
            num_workers=num_workers,
            device=device,
            replace=True,
        )
        aside |= {entry[0]: entry for entry in features.set_aside}
        retrieval = evaluate_retrieval(features, gallery=gallery, query=query, seed=seed)
        linear = evaluate_linear(features, gallery=gallery, query=query, seed=seed)
        rows.append(
            Baseline(
                name=name,
                modality=features.about.showing.modality,
                recall=retrieval.recall,
                linear=linear.scores.top1,
                interval=retrieval.interval[1],
                effective_rank=retrieval.effective_rank,
                features=features.summary(),
            )
        )
        on_baseline()
    return BaselinesResult(protocol, gallery, query, rows, list(aside.values()))


def baseline_subjects(clips: Clips, encoder: str, seed: int) -> list[tuple[str, Subject]]:
    """Name and network of each, for the modalities that the clips have."""
    stored = [name for name in ("rgb", "flow") if name in clips.modalities]
    histograms = {"rgb": "color", "flow": "flow"}
    found = [(f"{histograms[name]}-histogram", histogram_subject(histograms[name])) for name in stored]
    return found + [(f"random-{encoder}-{name}", random_subject(encoder, modality=name, seed=seed)) for name in stored]


def chance(videos: Videos, gallery: str, query: str, *, val_share: float = VAL_SHARE, seed: int = 0) -> Baseline:
    """What drawing gallery videos blindly, or always naming the most frequent class, would reach."""
    known, asked = (part_rows(videos, name, val_share=val_share, seed=seed) for name in (gallery, query))
    same = (videos.labels[known][None, :] == videos.labels[asked][:, None]).sum(1)  # gallery videos of its class
    frequent = videos.labels[known].bincount().argmax()
    return Baseline(
        name="chance",
        modality="",
        recall={k: chance_recall(same, len(known), k) for k in RANKS if k <= len(known)},
        linear=100 * float((videos.labels[asked] == frequent).double().mean()),
    )


def chance_recall(same: Tensor | Sequence[int], num_gallery: int, k: int) -> float:
    """Percent of queries that find one of their `same` gallery videos among k blind draws without replacement."""
    misses = {n: comb(num_gallery - n, k) / comb(num_gallery, k) for n in {int(n) for n in same}}
    return 100 * (1 - sum(misses[int(n)] for n in same) / len(same))
