"""The comparison of search entries: scores as `search` has them, hits and the choice of weights against loops."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.evaluation.features.file import Features, save_features
from covid_cmsf.search.index import build_index
from covid_cmsf.search.query import search, video_vectors
from tests.search.factories import windowed_features
from tools.compare_search import (
    CHOOSE_GROUPS,
    GRID,
    Entries,
    choose_weights,
    first_hits,
    measure,
    parse_ids,
    search_scores,
)

IDS = tuple(f"{name}/v_{name}_g{group:02d}_c0{clip}" for name in "AB" for group in (8, 9, 20) for clip in (1, 2))


def ucf_features(seed: int = 0) -> Features:
    features = windowed_features(len(IDS), seed=seed)
    return replace(features, videos=replace(features.videos, ids=IDS))


def test_scores_are_those_of_search() -> None:
    index = build_index({"rgb": ucf_features()})
    scores = search_scores(index.windows["rgb"], len(index.videos))
    for query in (0, 5, 11):
        for match in search(index, video_vectors(index, query), top=12):
            assert scores[query, match.video] == pytest.approx(match.score, abs=1e-5)


def test_hits_skip_clips_of_the_same_source() -> None:
    videos = parse_ids(IDS)
    scores = np.random.default_rng(0).normal(size=(12, 12))
    expected = []
    for query in range(12):
        if videos.groups[query] not in CHOOSE_GROUPS:
            continue
        others = [i for i in range(12) if IDS[i][:-3] != IDS[query][:-3]]
        best = max(others, key=lambda other: scores[query, other])
        expected.append(videos.classes[best] == videos.classes[query])
    assert first_hits(scores, videos, CHOOSE_GROUPS).tolist() == expected
    with pytest.raises(ValueError, match="'cat' is no id"):
        parse_ids(["cat"])


def test_the_best_weight_on_the_first_groups_is_chosen(tmp_path: Path) -> None:
    given = {}
    for number, name in enumerate(("image", "motion", "flow-cmsf")):
        for seed in (0, 1):
            save_features(tmp_path / f"{name}-{seed}", ucf_features(10 * number + seed))
        given[name] = str(tmp_path / (f"{name}-{{seed}}" if name.startswith("flow") else f"{name}-0"))
    entries = Entries(given, [0, 1])
    chosen = choose_weights(entries)
    assert set(chosen) == {"image + motion", "image + flow-cmsf", "image + flow-cmsf + motion"}
    one = chosen["image + flow-cmsf"]
    by_weight = {w: entries.hits({"image": 1.0, "flow-cmsf": w}, CHOOSE_GROUPS).mean() for w in GRID}
    assert one["weights"] == {"image": 1.0, "flow-cmsf": min(by_weight, key=lambda w: (-by_weight[w], w))}
    result = measure(entries, chosen, range(15, 26))
    assert result["num_queries"] == 4 and result["num_sources"] == 2
    assert len(result["r1"]["image + flow-cmsf"]["seeds"]) == 2 and len(result["r1"]["image"]["seeds"]) == 1
