"""Approximate search: proposals by faiss, scores exact."""

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.search.approximate import ApproximateSearch, measure_recall
from covid_cmsf.search.index import IndexedVideo, SearchIndex, WindowSet, load_index, save_index
from covid_cmsf.search.query import search, video_vectors


def clustered_index(num_videos: int = 1500) -> SearchIndex:
    """Two windows per video around one of 30 centers."""
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(30, 16, generator=generator)
    rows = centers[torch.arange(num_videos) % 30].repeat_interleave(2, dim=0)
    vectors = F.normalize(rows + 0.5 * torch.randn(rows.shape, generator=generator), dim=1)
    videos = torch.arange(num_videos).repeat_interleave(2)
    windows = WindowSet(vectors, torch.zeros(16), videos, torch.tensor([0, 8] * num_videos), 8, {})
    return SearchIndex(tuple(IndexedVideo(f"v{i:04d}", "", "", 20, 25.0) for i in range(num_videos)), {"rgb": windows})


def test_candidates_are_scored_as_in_the_search_of_all() -> None:
    index = clustered_index(200)
    everything = {match.video: match for match in search(index, video_vectors(index, 5), top=200)}
    some = search(index, video_vectors(index, 5), top=200, candidates=torch.tensor([3, 5, 77, 199]))
    assert {match.video for match in some} == {3, 5, 77, 199}
    for match in some:
        expected = everything[match.video]
        assert (match.score, match.start) == pytest.approx((expected.score, expected.start), abs=1e-6)


def test_approximate_search_finds_most_neighbors_and_is_read_as_it_was_written(tmp_path: Path) -> None:
    save_index(tmp_path, clustered_index())
    index = load_index(tmp_path)
    approximate = ApproximateSearch.build(index)
    recall = measure_recall(approximate, sample=20)
    assert 0.9 <= recall <= 1
    approximate.save(tmp_path, recall=recall)
    read = ApproximateSearch.load(tmp_path, index)
    queries = video_vectors(index, 7)
    assert torch.equal(read.propose(queries), approximate.propose(queries))
    assert 7 in read.propose(queries).tolist() and len(read.propose(queries)) < 600
    assert json.loads((tmp_path / "faiss.json").read_text())["rgb"]["recall"] == recall


def test_inverted_files_of_other_vectors_are_refused(tmp_path: Path) -> None:
    index = clustered_index(200)
    save_index(tmp_path, index)
    with pytest.raises(FileNotFoundError, match="built without --faiss"):
        ApproximateSearch.load(tmp_path, index)
    ApproximateSearch.build(index).save(tmp_path, recall=1.0)
    described = (tmp_path / "faiss.json").read_text()
    (tmp_path / "faiss.json").write_text(described.replace(json.loads(described)["rgb"]["vectors_sha256"], "0"))
    with pytest.raises(ValueError, match="belongs to another index"):
        ApproximateSearch.load(tmp_path, index)
    (tmp_path / "faiss.json").write_text(described)
    (tmp_path / "rgb.faiss").write_bytes(b"")
    with pytest.raises(ValueError, match="is missing or was changed"):
        ApproximateSearch.load(tmp_path, index)
    save_index(tmp_path, index)
    assert not list(tmp_path.glob("*faiss*"))
