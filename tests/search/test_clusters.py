"""Clusters of an index of known groups."""

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.search.clusters import choose_num_clusters, cluster_videos, mean_vectors, separation
from covid_cmsf.search.index import IndexedVideo, SearchIndex, WindowSet, build_index
from tests.search.factories import windowed_features

GROUPS = 4


def grouped_index(num_videos: int = 41) -> SearchIndex:
    """Video i is of group i % GROUPS, two windows each; the last one is unlike all others."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(GROUPS, 16, generator=generator)
    rows = centers[torch.arange(num_videos) % GROUPS] + 0.2 * torch.randn(num_videos, 16, generator=generator)
    rows[-1] = torch.randn(16, generator=generator)
    vectors = F.normalize(rows, dim=1).repeat_interleave(2, dim=0)
    videos = torch.arange(num_videos).repeat_interleave(2)
    windows = WindowSet(vectors, torch.zeros(16), videos, torch.tensor([0, 8] * num_videos), 8, {})
    rows_of_table = tuple(IndexedVideo(f"v{i}", f"v{i}", "", 20, 25.0) for i in range(num_videos))
    return SearchIndex(rows_of_table, {"rgb": windows})


def test_known_groups_are_found_whatever_the_seed() -> None:
    for seed in range(3):
        clustering = cluster_videos(grouped_index(), num_clusters=GROUPS, seed=seed)
        groups = [{video % GROUPS for video in one.videos if video != 40} for one in clustering.clusters]
        assert sorted(map(min, groups)) == [0, 1, 2, 3] and all(len(group) == 1 for group in groups)
        assert sum(len(one.videos) for one in clustering.clusters) == 41


def test_the_number_of_clusters_is_chosen_near_that_of_the_groups() -> None:
    vectors, _ = mean_vectors(grouped_index())
    assert choose_num_clusters(vectors) in (4, 5)


def test_the_video_unlike_all_others_is_the_first_outlier() -> None:
    assert cluster_videos(grouped_index(), num_clusters=4).outliers[0][0] == 40


def test_videos_are_listed_most_typical_first() -> None:
    index = grouped_index()
    vectors, _ = mean_vectors(index)
    cluster = cluster_videos(index, num_clusters=4).clusters[0]
    center = F.normalize(vectors[list(cluster.videos)].mean(0), dim=0)
    similarities = [float(vectors[video] @ center) for video in cluster.videos]
    assert similarities == sorted(similarities, reverse=True)
    assert cluster.cohesion == pytest.approx(sum(similarities) / len(similarities), abs=1e-5)


def test_fused_vectors_have_the_mean_of_the_similarities() -> None:
    features = {"rgb": windowed_features(6), "flow": windowed_features(6, num_values=5, seed=1)}
    index = build_index(features)
    fused, videos = mean_vectors(index)
    single = [mean_vectors(index, name)[0] for name in ("rgb", "flow")]
    expected = (single[0] @ single[0].T + single[1] @ single[1].T) / 2
    torch.testing.assert_close(fused @ fused.T, expected, atol=1e-5, rtol=0)
    assert videos.tolist() == list(range(6))


def test_separation_equals_the_silhouette_computed_one_by_one() -> None:
    generator = torch.Generator().manual_seed(3)
    similarity, labels = torch.rand(10, 3, generator=generator), torch.randint(0, 3, (10,), generator=generator)
    values = []
    for row, label in zip(similarity.tolist(), labels.tolist(), strict=True):
        own, other = 1 - row[label], min(1 - value for i, value in enumerate(row) if i != label)
        values.append((other - own) / max(own, other))
    assert separation(similarity, labels) == pytest.approx(sum(values) / 10, abs=1e-6)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="99 clusters of 41 videos"):
        cluster_videos(grouped_index(), num_clusters=99)
    with pytest.raises(ValueError, match="clusters need at least 2"):
        cluster_videos(build_index({"rgb": windowed_features(1)}))
