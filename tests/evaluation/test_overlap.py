"""What training and test may have in common: nothing, sources of other classes with a warning, or what was allowed."""

import logging
from dataclasses import replace

import pytest
import torch

from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.overlap import Overlap, check_overlap
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from tests.evaluation.factories import synthetic_features

TRAIN, TEST = torch.tensor([0, 1, 2]), torch.tensor([3, 4])


def table(sources: str, labels: list[int], hashes: str = "abcde") -> VideoTable:
    """Five videos, the last two for testing; a letter for each source and each file's hash, _ for an unknown hash."""
    records = [
        ClipRecord(f"v{i}", source, f"c{label}", label, 9, 8, 25.0, 8, 8, "" if letter == "_" else 64 * letter)
        for i, (source, label, letter) in enumerate(zip(sources, labels, hashes, strict=True))
    ]
    return VideoTable.from_records(records, ["train"] * 3 + ["test"] * 2)


def overlap(videos: VideoTable, *, allow: bool = False) -> Overlap:
    return check_overlap(videos, TRAIN, TEST, names=("train", "test"), allow_shared_sources=allow)


def test_a_source_in_one_class_of_both_subsets_is_an_error() -> None:
    videos = table("abcad", [0, 1, 1, 0, 1])
    with pytest.raises(ValueError, match=r"1 sources are in both 'train' and 'test' .* 'a'.*allow_shared_sources"):
        overlap(videos)
    assert overlap(videos, allow=True) == Overlap(num_shared_sources=1, num_sibling_sources=1)


def test_a_source_in_different_classes_is_a_warning_as_in_hmdb51(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        found = overlap(table("aabab", [0, 1, 1, 2, 2]))
    assert found == Overlap(num_shared_sources=2, num_sibling_sources=0)
    assert "2 sources are in both 'train' and 'test', in different classes" in caplog.text


def test_one_class_in_common_is_enough_for_an_error() -> None:
    with pytest.raises(ValueError, match="1 sources are in both"):
        overlap(table("aabac", [0, 1, 1, 1, 2]))


def test_the_same_file_in_both_subsets_is_an_error() -> None:
    videos = table("abcde", [0, 1, 1, 0, 1], "xyzxw")
    with pytest.raises(ValueError, match=r"1 files are in both 'train' and 'test' .*'v0' = 'v3'"):
        overlap(videos)
    assert overlap(videos, allow=True) == Overlap(num_identical_files=1)
    assert overlap(table("abcde", [0, 1, 1, 0, 1], "xxzww")) == Overlap()  # within a subset
    assert overlap(table("abcde", [0, 1, 1, 0, 1], "_____")) == Overlap()
    assert overlap(replace(videos, contents=None)) == Overlap()


def test_a_video_in_both_subsets_is_always_an_error() -> None:
    with pytest.raises(ValueError, match="have videos in common: a video would find itself, for example 'v1'"):
        check_overlap(table("abcde", [0] * 5), TRAIN, torch.tensor([1, 4]), names=("a", "b"), allow_shared_sources=True)


def test_results_record_what_the_subsets_have_in_common() -> None:
    features = synthetic_features()
    sources = tuple("film" if source in ("c0_s0", "c1_s5") else source for source in features.videos.sources)
    shared = replace(features, videos=replace(features.videos, sources=sources))
    assert evaluate_retrieval(shared).overlap == Overlap(num_shared_sources=1)
