"""Search by windows, against a slow and obvious twin."""

import math

import numpy as np
import pytest
import torch

from covid_cmsf.search import query as query_module
from covid_cmsf.search.index import SearchIndex, build_index
from covid_cmsf.search.query import search, video_vectors
from tests.search.factories import windowed_features


def make_index() -> SearchIndex:
    return build_index({"rgb": windowed_features(9), "flow": windowed_features(8, num_values=5, seed=1)})


def slow_scores(index: SearchIndex, queries: dict[str, torch.Tensor], modality: str) -> list[float]:
    windows = index.windows[modality]
    scores = []
    for video in range(len(index.videos)):
        rows = [row for row in range(len(windows.videos)) if int(windows.videos[row]) == video]
        best = [max((float(one @ windows.vectors[row]) for row in rows), default=math.nan) for one in queries[modality]]
        scores.append(sum(best) / len(best))
    return scores


@pytest.mark.parametrize("block", [1, 30, 10_000])
@pytest.mark.parametrize("modality", ["rgb", "flow", "fused"])
def test_search_equals_comparing_all_windows_one_by_one(
    monkeypatch: pytest.MonkeyPatch, block: int, modality: str
) -> None:
    monkeypatch.setattr(query_module, "BLOCK_VALUES", block)
    index = make_index()
    queries = video_vectors(index, 2)
    matches = search(index, queries, top=99, modality=modality)
    names = ["rgb", "flow"] if modality == "fused" else [modality]
    columns = [slow_scores(index, queries, name) for name in names]
    expected = {video: sum(values) / len(values) for video, values in enumerate(zip(*columns, strict=True))}
    expected = {video: score for video, score in expected.items() if not math.isnan(score)}
    assert {match.video for match in matches} == set(expected)
    for match in matches:
        assert match.score == pytest.approx(expected[match.video], abs=1e-6)
    assert [match.score for match in matches] == sorted((match.score for match in matches), reverse=True)


@pytest.mark.parametrize("count", [1, 3, 50])
def test_the_largest_values_are_in_order_and_ties_keep_their_order(count: int) -> None:
    values = [0.5, math.nan, 2.0, 0.5, -1.0, 2.0, math.nan, 0.5]
    known = [number for number, value in enumerate(values) if not math.isnan(value)]
    expected = sorted(known, key=lambda number: (-values[number], number))[:count]
    assert query_module._largest(np.array(values), count) == expected


def test_a_video_is_most_like_itself_and_can_be_excluded() -> None:
    index = make_index()
    assert search(index, video_vectors(index, 4), top=1)[0].video == 4
    assert 4 not in {match.video for match in search(index, video_vectors(index, 4), exclude=frozenset({4}))}


def test_the_match_names_the_window_that_is_most_alike() -> None:
    index = make_index()
    query = {name: vectors[1:2] for name, vectors in video_vectors(index, 5).items()}  # the second window of three
    match = search(index, query, top=1, modality="rgb")[0]
    assert (match.video, match.start, match.end) == (5, 4, 12)
    assert match.score == pytest.approx(1, abs=1e-6) and set(match.by_modality) == {"rgb", "flow"}


def test_an_interval_selects_the_windows_that_begin_in_it() -> None:
    index = make_index()
    assert len(video_vectors(index, 5)["rgb"]) == 3
    assert len(video_vectors(index, 5, start=4)["rgb"]) == 2
    assert len(video_vectors(index, 5, start=4, end=8)["rgb"]) == 1
    nearest = video_vectors(index, 5, start=9, end=10)["rgb"]  # no window begins there: the one around it
    assert torch.equal(nearest, video_vectors(index, 5, start=4, end=8)["rgb"])


def test_a_video_without_a_modality_is_left_out_of_results_that_need_it() -> None:
    index = make_index()  # video 8 has no flow
    queries = video_vectors(index, 0)
    assert 8 in {match.video for match in search(index, queries, modality="rgb")}
    assert 8 not in {match.video for match in search(index, queries, modality="fused")}


def test_wrong_requests_are_one_line() -> None:
    index = make_index()
    queries = video_vectors(index, 0)
    with pytest.raises(ValueError, match="no 'depth'; choose from flow, rgb, fused"):
        search(index, queries, modality="depth")
    with pytest.raises(ValueError, match="top = 0"):
        search(index, queries, top=0)
    with pytest.raises(ValueError, match="no windows of flow"):
        search(index, {"rgb": queries["rgb"]}, modality="fused")
