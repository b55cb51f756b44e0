"""Search by id: names, seconds, and which modality found a video."""

import pytest

from covid_cmsf.search.find import open_query, search_videos
from covid_cmsf.search.index import SearchIndex, build_index
from covid_cmsf.search.query import search, video_vectors
from tests.search.factories import windowed_features


def make_index() -> SearchIndex:
    return build_index({"rgb": windowed_features(9), "flow": windowed_features(9, num_values=5, seed=1)})


def test_results_have_the_names_and_scores_of_the_search_below() -> None:
    index = make_index()
    matches = search(index, video_vectors(index, 4), top=3, exclude=frozenset({4}))
    found = search_videos(index, "v4", top=3)
    assert [one.video_id for one in found] == [index.videos[match.video].video_id for match in matches]
    assert [one.score for one in found] == [match.score for match in matches]
    assert [one.start for one in found] == [match.start for match in matches]  # frames: no frame rate is known


def test_a_video_is_found_by_the_modality_that_alone_lists_it_first() -> None:
    index = make_index()
    for match in search(index, video_vectors(index, 4), top=9, exclude=frozenset({4})):
        for name in ("rgb", "flow"):
            alone = search(index, video_vectors(index, 4), top=9, modality=name, exclude=frozenset({4}))
            assert match.ranks[name] == [one.video for one in alone].index(match.video) + 1
        assert match.ranks[match.found_by()] == min(match.ranks.values())


def test_wrong_queries_are_one_line() -> None:
    index = make_index()
    with pytest.raises(ValueError, match="no 'depth'; choose from flow, rgb, fused"):
        search_videos(index, "v4", modality="depth")
    with pytest.raises(ValueError, match="no windows from 3 to 2"):
        open_query(index, "v4", start=3, end=2)
