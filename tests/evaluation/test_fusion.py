"""Two streams: sums and means against loops, matching by id, and files that do not belong together."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covid_cmsf.evaluation.features.file import (
    Features,
    Probabilities,
    holds_probabilities,
    load_probabilities,
    save_probabilities,
)
from covid_cmsf.evaluation.features.subsets import subset_indices
from covid_cmsf.evaluation.fusion import evaluate_fusion, fuse_probabilities
from covid_cmsf.evaluation.nearest import center_and_normalize
from covid_cmsf.evaluation.probes.linear import evaluate_linear, train_probe
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from tests.evaluation.factories import synthetic_features

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.fixture
def streams() -> tuple[Features, Features]:
    return synthetic_features(noise=2.5, seed=0), synthetic_features(noise=2.5, seed=1, num_values=12)


def shuffled(features: Features, keep: int) -> Features:
    """Some of the videos in another order."""
    rows = torch.randperm(len(features.videos), generator=torch.Generator().manual_seed(0))[:keep]
    return replace(features, videos=features.videos.take(rows), features=features.features[rows])


def test_similarities_are_added(streams: tuple[Features, Features]) -> None:
    result = evaluate_fusion(*streams)
    train, test = (subset_indices(streams[0].videos, name) for name in ("train", "test"))
    total = torch.zeros(len(test), len(train), dtype=torch.float64)
    for one in streams:
        gallery, queries = center_and_normalize(one.features[train], one.features[test], "train")
        total += queries.double() @ gallery.double().T
    labels = streams[0].videos.labels
    for k in (1, 5, 20):
        found = torch.argsort(-total, dim=1, stable=True)[:, :k]
        hits = (labels[train][found] == labels[test][:, None]).any(1)
        assert result.retrieval.recall[k] == pytest.approx(100 * float(hits.double().mean()))
    assert result.retrieval.recall[1] > max(evaluate_retrieval(one).recall[1] for one in streams)


def test_probabilities_are_averaged(streams: tuple[Features, Features]) -> None:
    result = evaluate_fusion(*streams)
    train, test = (subset_indices(streams[0].videos, name) for name in ("train", "test"))
    answers = [train_probe(one, train, test).probabilities for one in streams]
    right = ((answers[0] + answers[1]) / 2).argmax(1) == streams[0].videos.labels[test]
    assert result.linear.top1 == pytest.approx(100 * float(right.double().mean()))
    assert [scores.top1 for scores in result.linear_streams] == [evaluate_linear(one).scores.top1 for one in streams]


def test_videos_are_matched_by_id(streams: tuple[Features, Features]) -> None:
    whole = evaluate_fusion(*streams)
    mixed = evaluate_fusion(streams[0], shuffled(streams[1], 48))
    assert mixed.retrieval.recall == whole.retrieval.recall and mixed.linear == whole.linear
    fewer = evaluate_fusion(streams[0], shuffled(streams[1], 40))
    assert (fewer.num_common, fewer.num_only_first, fewer.num_only_second) == (40, 8, 0)
    assert fewer.retrieval.num_query + fewer.retrieval.num_gallery == 40


def test_files_that_do_not_belong_together_are_refused(streams: tuple[Features, Features]) -> None:
    first, second = streams
    videos = second.videos
    labels = videos.labels.clone()
    labels[5] = 3
    with pytest.raises(ValueError, match="disagree about the label of 1 videos; 'c0/s2_1': 0, 3"):
        evaluate_fusion(first, replace(second, videos=replace(videos, labels=labels)))
    subsets = ("train", *videos.subsets[1:])
    with pytest.raises(ValueError, match="disagree about the subset of the split of 1 videos"):
        evaluate_fusion(first, replace(second, videos=replace(videos, subsets=subsets)))
    with pytest.raises(ValueError, match="disagree about the class"):
        evaluate_fusion(first, replace(second, videos=replace(videos, class_names=("d0", "c1", "c2", "c3"))))
    with pytest.raises(ValueError, match="no video in common"):
        evaluate_fusion(first, replace(second, videos=replace(videos, ids=tuple(f"x{i}" for i in range(48)))))
    with pytest.raises(ValueError, match="different protocols: clean and coclr"):
        evaluate_fusion(first, synthetic_features(seed=1, protocol="coclr"))
    with pytest.raises(ValueError, match="same encoder and modality"):
        evaluate_fusion(first, first)


def classifier(seed: int, num_classes: int = 4, keep: int = 16) -> Probabilities:
    videos = synthetic_features(num_classes).videos
    tested = videos.take(subset_indices(videos, "test")[:keep])
    values = torch.rand(keep, num_classes, generator=torch.Generator().manual_seed(seed))
    provenance = {"protocol": "clean", "fingerprint": str(seed)}
    return Probabilities(tested, values / values.sum(1, keepdim=True), provenance)


def test_answers_of_trained_classifiers_are_averaged(tmp_path: Path) -> None:
    first, second = classifier(0), classifier(1, keep=12)
    result = fuse_probabilities(first, second)
    mean = (first.probabilities[:12] + second.probabilities) / 2
    right = mean.argmax(1) == second.videos.labels
    assert result.scores.top1 == pytest.approx(100 * float(right.double().mean())) and result.num_only_first == 4
    with pytest.raises(ValueError, match="same classifier"):
        fuse_probabilities(first, first)


def test_the_probabilities_file(tmp_path: Path) -> None:
    made = classifier(0)
    path = tmp_path / "p"
    save_probabilities(path, made)
    again = load_probabilities(path)
    assert torch.equal(again.probabilities, made.probabilities) and again.videos.ids == made.videos.ids
    assert holds_probabilities(path) and not holds_probabilities(tmp_path / "no")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ValueError, match="damaged"):
        load_probabilities(path)
    save_probabilities(path, replace(made, probabilities=made.probabilities[:3]))
    with pytest.raises(ValueError, match="probabilities \\(3, 4\\) for 16 videos"):
        load_probabilities(path)
