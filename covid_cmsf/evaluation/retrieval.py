"""Video retrieval: is a video of the query's class among its K nearest? (Han et al. 2020; Xu et al. 2019)"""

# G gallery rows, Q queries, D feature, K neighbors

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.evaluation.bootstrap import Interval, bootstrap_interval
from covid_cmsf.evaluation.centering import choose_centering, comparable
from covid_cmsf.evaluation.features import Features
from covid_cmsf.evaluation.nearest import nearest
from covid_cmsf.evaluation.parts import VAL_SHARE, part_rows
from covid_cmsf.evaluation.videos import Videos
from covid_cmsf.models.spectrum import effective_rank

RANKS = (1, 5, 10, 20, 50)


@dataclass(frozen=True)
class RetrievalResult:
    """Percentages. A rank larger than the gallery is left out of `recall`."""

    protocol: str
    gallery: str
    query: str
    centering: str
    num_gallery: int
    num_query: int
    recall: dict[int, float]  # R@k
    interval: dict[int, Interval]  # 95%, resampling the queries' sources
    per_class: dict[str, float]  # R@1
    num_shared_sources: int  # sources in both parts; 0 unless they were allowed
    effective_rank: float  # of the gallery
    chance: float  # R@1 of a random order
    features: list[dict[str, Any]] = field(default_factory=list)


def evaluate_retrieval(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_share: float = VAL_SHARE,
    seed: int = 0,
) -> RetrievalResult:
    """R@1, 5, 10, 20, 50 of the query part in the gallery part. `seed` is that of fit/val and of the bootstrap."""
    chosen = choose_centering(centering, features.protocol)
    pair = parts_for_retrieval(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_share=val_share, seed=seed
    )
    known, asked = (features.features[rows] for rows in pair)
    known, asked = comparable(known, asked, chosen)
    scored = score_retrieval(features.videos, pair, known, asked, seed=seed)
    return RetrievalResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        centering=chosen,
        features=[features.summary()],
        **scored,
    )


def parts_for_retrieval(
    videos: Videos, gallery: str, query: str, *, allow_shared_sources: bool, val_share: float, seed: int
) -> tuple[Tensor, Tensor]:
    """The rows of both parts; ValueError when they overlap, or share footage and that was not allowed."""
    known, asked = (part_rows(videos, name, val_share=val_share, seed=seed) for name in (gallery, query))
    if set(known.tolist()) & set(asked.tolist()):
        raise ValueError(f"the parts {gallery!r} and {query!r} have videos in common: a video would find itself")
    check_sources(videos, known, asked, allow_shared_sources=allow_shared_sources)
    return known, asked


def check_sources(videos: Videos, first: Tensor, second: Tensor, *, allow_shared_sources: bool) -> int:
    """How many sources both sets of rows have; ValueError if there are any and that was not allowed."""
    shared = shared_sources(videos, first, second)
    if shared and not allow_shared_sources:
        names = [videos.parts[int(rows[0])] for rows in (first, second)]
        raise ValueError(
            f"{len(shared)} sources stand both in {names[0]!r} and in {names[1]!r}, for example {shared[0]!r}: sibling "
            "clips would find each other. Mend the split, or allow it by --allow-shared-sources; the result says so"
        )
    return len(shared)


def shared_sources(videos: Videos, first: Tensor, second: Tensor) -> list[str]:
    """The sources that both sets of rows have, sorted."""
    in_first, in_second = ({videos.sources[i] for i in rows.tolist()} for rows in (first, second))
    return sorted(in_first & in_second)


def score_retrieval(
    videos: Videos, pair: tuple[Tensor, Tensor], known: Tensor, asked: Tensor, *, seed: int
) -> dict[str, Any]:
    """The numbers of a `RetrievalResult`, from unit vectors of both parts."""
    ranks = [k for k in RANKS if k <= len(known)]
    found = nearest(asked, known, ranks[-1])  # (Q, K)
    labels = videos.labels[pair[1]]
    right = videos.labels[pair[0]][found] == labels[:, None]
    hits = {k: right[:, :k].any(1) for k in ranks}
    sources = videos.take(pair[1]).sources
    return {
        "num_gallery": len(known),
        "num_query": len(asked),
        "recall": {k: 100 * float(hit.double().mean()) for k, hit in hits.items()},
        "interval": {k: bootstrap_interval(hit, sources, seed=seed) for k, hit in hits.items()},
        "per_class": mean_by_class(hits[1], labels, videos.class_names),
        "num_shared_sources": len(shared_sources(videos, *pair)),
        "effective_rank": effective_rank(known),
        "chance": 100 * float((videos.labels[pair[0]] == labels[:, None]).double().mean()),
    }


def mean_by_class(hits: Tensor, labels: Tensor, class_names: Sequence[str]) -> dict[str, float]:
    """{class: percent}, for the classes that occur."""
    return {
        class_names[label] or str(label): 100 * float(hits[labels == label].double().mean())
        for label in torch.unique(labels).tolist()
    }
