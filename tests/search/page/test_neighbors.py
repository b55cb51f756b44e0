"""Neighbors of all videos at once are those of one search after the other."""

from dataclasses import replace

import pytest

from covid_cmsf.search.index import SearchIndex, build_index
from covid_cmsf.search.page import neighbors
from covid_cmsf.search.page.neighbors import all_neighbors, choices, find_neighbors
from covid_cmsf.search.query import search, video_vectors
from tests.search.factories import windowed_features


def two_modalities(num_videos: int = 23) -> SearchIndex:
    features = {"rgb": windowed_features(num_videos), "flow": windowed_features(num_videos, num_values=5, seed=1)}
    return build_index(features)


@pytest.mark.parametrize("block", [1, 100, 10**9])
def test_all_neighbors_are_those_of_one_search_after_the_other(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "BLOCK_VALUES", block)
    index = two_modalities()
    found = list(all_neighbors(index, top=4))
    assert len(found) == 23 and list(found[0]) == ["fused", "flow", "rgb"]
    for video, by_choice in enumerate(found):
        vectors = video_vectors(index, video)
        for choice, results in by_choice.items():
            slow = find_neighbors(index, vectors, choice, top=4, exclude=frozenset({video}))
            assert results.videos == slow.videos and results.starts == slow.starts and results.ranks == slow.ranks
            assert results.scores == pytest.approx(slow.scores, abs=1e-5)
            assert all(results.by[name] == pytest.approx(slow.by[name], abs=1e-5) for name in ("rgb", "flow"))


def test_a_result_has_the_rank_of_every_modality_alone() -> None:
    index = two_modalities()
    vectors = video_vectors(index, 3)
    results = find_neighbors(index, vectors, "fused", top=6, exclude=frozenset({3}))
    for name in ("rgb", "flow"):
        alone = [match.video for match in search(index, vectors, top=6, modality=name, exclude=frozenset({3}))]
        expected = [alone.index(video) + 1 if video in alone else 0 for video in results.videos]
        assert results.ranks[name] == expected and any(expected)


def test_a_video_without_windows_of_a_modality_has_no_neighbors_by_it() -> None:
    index = two_modalities()
    flow = index.windows["flow"]
    keep = flow.videos != 5
    part = replace(flow, vectors=flow.vectors[keep], videos=flow.videos[keep], starts=flow.starts[keep])
    found = list(all_neighbors(SearchIndex(index.videos, {"rgb": index.windows["rgb"], "flow": part}), top=30))
    assert found[5]["flow"].videos == [] == found[5]["fused"].videos and len(found[5]["rgb"].videos) == 22
    assert all(5 not in one["fused"].videos for one in found) and list(found[5]["rgb"].by) == ["rgb"]
    assert found[0]["rgb"].by["flow"][found[0]["rgb"].videos.index(5)] is None


def test_one_modality_has_no_fused_choice() -> None:
    assert choices(build_index({"flow": windowed_features(4)})) == ["flow"]
