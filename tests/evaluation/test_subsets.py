"""Fit and val: cut by source, the same every time, stratified by class."""

import numpy as np
import pytest
import torch

from covid_cmsf.evaluation.features.subsets import VideoTable, choose_validation_sources, split_fit_val, subset_indices
from tests.evaluation.factories import synthetic_features


def table(num_classes: int = 5, num_sources: int = 10, num_videos: int = 3) -> tuple[list[str], list[int]]:
    sources = [f"c{c}_s{s}" for c in range(num_classes) for s in range(num_sources) for _ in range(num_videos)]
    return sources, [int(source[1]) for source in sources]


@pytest.mark.parametrize("fraction", [0.1, 0.2, 0.5, 0.99])
def test_every_class_gives_its_share_and_keeps_one(fraction: float) -> None:
    sources, labels = table()
    held_out = choose_validation_sources(sources, labels, fraction=fraction, seed=0)
    for label in range(5):
        count = sum(source.startswith(f"c{label}_") for source in held_out)
        assert count == min(9, round(10 * fraction))


def test_the_cut_follows_from_names_and_seed_not_from_order() -> None:
    sources, labels = table()
    order = np.random.default_rng(0).permutation(len(sources))
    mixed = [sources[i] for i in order], [labels[i] for i in order]
    assert choose_validation_sources(*mixed, fraction=0.2, seed=3) == choose_validation_sources(
        sources, labels, fraction=0.2, seed=3
    )
    assert choose_validation_sources(sources, labels, fraction=0.2, seed=4) != choose_validation_sources(
        sources, labels, fraction=0.2, seed=3
    )


def test_no_source_is_in_both_and_nothing_is_lost() -> None:
    videos = synthetic_features().videos
    train = subset_indices(videos, "train")
    fit, val = (subset_indices(videos, name) for name in ("fit", "val"))
    assert sorted(torch.cat([fit, val]).tolist()) == train.tolist()
    assert not {videos.sources[i] for i in fit.tolist()} & {videos.sources[i] for i in val.tolist()}
    assert set(videos.labels[val].tolist()) == set(range(4))


def test_a_class_with_one_source_stays_whole() -> None:
    held_out = choose_validation_sources(["a", "b", "b", "c"], [0, 1, 1, 1], fraction=0.3, seed=0)
    assert len(held_out) == 1 and held_out <= {"b", "c"}
    with pytest.raises(ValueError, match="every class has a single source"):
        choose_validation_sources(["a", "b"], [0, 1], fraction=0.5, seed=0)
    for fraction in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            choose_validation_sources(["a", "b"], [0, 0], fraction=fraction, seed=0)


def test_a_source_of_several_classes_counts_for_the_most_frequent() -> None:
    sources = ["mixed", "mixed", "mixed", "b", "c"]
    held_out = choose_validation_sources(sources, [1, 1, 0, 0, 0], fraction=0.5, seed=0)
    assert "mixed" not in held_out and len(held_out) == 1


def test_a_split_with_its_own_val_part_uses_it() -> None:
    made = synthetic_features().videos
    subsets = tuple(
        "val" if source.endswith("s3") else subset for source, subset in zip(made.sources, made.subsets, strict=True)
    )
    videos = VideoTable(made.ids, made.sources, made.labels, subsets, made.class_names)
    assert {videos.subsets[i] for i in subset_indices(videos, "val").tolist()} == {"val"}
    assert torch.equal(subset_indices(videos, "fit"), subset_indices(videos, "train"))


def test_empty_unknown_and_unlabeled_parts_are_errors() -> None:
    made = synthetic_features().videos
    only_train = VideoTable(made.ids, made.sources, made.labels, ("train",) * len(made), made.class_names)
    with pytest.raises(ValueError, match="subset 'test' is empty; subsets with videos: train"):
        subset_indices(only_train, "test")
    with pytest.raises(ValueError, match="unknown subset 'tset'; choose from train, test, val, fit"):
        subset_indices(made, "tset")
    labels = made.labels.masked_fill(made.labels == 2, -1)
    some = VideoTable(made.ids, made.sources, labels, made.subsets, made.class_names)
    with pytest.raises(ValueError, match="8 of the 32 videos of subset 'train' have no label, which R@k, kNN and"):
        subset_indices(some, "train")
    unlabeled = VideoTable(made.ids, made.sources, torch.full_like(made.labels, -1), made.subsets, ())
    with pytest.raises(ValueError, match="none of the 48 videos has a label, which R@k, kNN and probes need"):
        subset_indices(unlabeled, "train")


def test_fit_and_val_are_rows_of_what_was_given() -> None:
    videos = synthetic_features().videos.take(torch.arange(10, 30))
    fit, val = split_fit_val(videos)
    assert sorted([*fit.tolist(), *val.tolist()]) == list(range(20))
