"""Neighbors, retrieval, kNN and intervals against slow, obvious twins."""

import io
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.knn import evaluate_knn, vote
from covid_cmsf.evaluation.nearest import center_and_normalize, nearest
from covid_cmsf.evaluation.render import retrieval_table
from covid_cmsf.evaluation.results import bootstrap_interval
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from covid_cmsf.models.effective_rank import effective_rank
from tests.evaluation.factories import synthetic_features


def unit(*shape: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=1)


def nearest_twin(queries: Tensor, gallery: Tensor, k: int) -> list[list[int]]:
    found = []
    for query in queries.double():
        similar = [float(np.float32(float((query * row).sum()))) for row in gallery.double()]
        found.append(sorted(range(len(similar)), key=lambda i: (-similar[i], i))[:k])
    return found


@pytest.mark.parametrize(("num_gallery", "k"), [(7, 3), (7, 7), (300, 5), (1000, 20), (33, 1)])
def test_neighbors_are_those_of_a_double_loop(num_gallery: int, k: int) -> None:
    queries, gallery = unit(11, 24, seed=1), unit(num_gallery, 24)
    assert nearest(queries, gallery, k).tolist() == nearest_twin(queries, gallery, k)


@pytest.mark.parametrize("k", [1, 4, 60])
def test_equal_rows_are_ordered_by_index(k: int) -> None:
    few = unit(9, 16)
    gallery = few[torch.randint(9, (700,), generator=torch.Generator().manual_seed(0))]  # each many times
    queries = torch.cat([few[:3], unit(3, 16, seed=5)])
    expected = nearest_twin(queries, gallery, k)
    for block_size in (None, 1, 4, 6):
        assert nearest(queries, gallery, k, block_size=block_size).tolist() == expected


def test_a_collapsed_encoder_finds_the_first_rows() -> None:
    gallery = torch.ones(500, 8) / 8**0.5
    assert nearest(gallery[:3], gallery, 5).tolist() == [[0, 1, 2, 3, 4]] * 3
    assert nearest(torch.zeros(2, 8), gallery, 3).tolist() == [[0, 1, 2]] * 2


def test_neighbors_do_not_depend_on_the_block_size() -> None:
    generator = torch.Generator().manual_seed(0)
    center = torch.randn(1, 200, generator=generator)
    gallery, queries = (F.normalize(center + 1e-5 * torch.randn(n, 200, generator=generator), dim=1) for n in (400, 50))
    expected = nearest(queries, gallery, 10)
    for block_size in (1, 3, 7, 49, 50, 1000):
        assert torch.equal(nearest(queries, gallery, 10, block_size=block_size), expected)


def test_too_many_neighbors_are_an_error() -> None:
    with pytest.raises(ValueError, match="k = 9: must be 1 to 8"):
        nearest(unit(2, 4), unit(8, 4), 9)
    assert nearest(torch.zeros(0, 4), unit(8, 4), 2).shape == (0, 2)


def recall_twin(features: Features, centering: str, ranks: list[int]) -> dict[int, float]:
    """Double loops, in float64."""
    rows, videos = features.features.double(), features.videos
    train = [i for i, subset in enumerate(videos.subsets) if subset == "train"]
    test = [i for i, subset in enumerate(videos.subsets) if subset == "test"]
    mean = {
        subset: sum(rows[i] for i in members) / len(members) for subset, members in (("train", train), ("test", test))
    }
    hits = dict.fromkeys(ranks, 0)
    for i in test:
        similar = []
        for j in train:
            a, b = rows[i], rows[j]
            if centering != "none":
                a, b = a - mean["test" if centering == "own" else "train"], b - mean["train"]
            similar.append((-float((a @ b) / (a.norm() * b.norm())), j))
        order = [j for _, j in sorted(similar)]
        for k in ranks:
            hits[k] += any(videos.labels[j] == videos.labels[i] for j in order[:k])
    return {k: 100 * hits[k] / len(test) for k in ranks}


@pytest.mark.parametrize("centering", ["train", "own", "none"])
@pytest.mark.parametrize("seed", [0, 1])
def test_recall_is_that_of_a_double_loop(centering: str, seed: int) -> None:
    features = synthetic_features(6, 9, noise=2.0, seed=seed)
    result = evaluate_retrieval(features, centering=centering)
    assert list(result.recall) == [1, 5, 10, 20, 50]
    assert result.recall == pytest.approx(recall_twin(features, centering, [1, 5, 10, 20, 50]))
    assert result.num_query == 36 and result.num_gallery == 72
    assert result.chance == pytest.approx(100 / 6)  # six classes of the same size


def test_the_protocol_chooses_the_centering_and_is_named() -> None:
    for protocol, centering in (("clean", "train"), ("coclr", "own")):
        result = evaluate_retrieval(synthetic_features(protocol=protocol))
        assert (result.protocol, result.centering) == (protocol, centering)
        assert result.features[0]["eval_protocol"]["name"] == protocol
    with pytest.raises(ValueError, match="unknown centering 'mean'; choose from train, own, none"):
        evaluate_retrieval(synthetic_features(), centering="mean")


def test_by_class_is_the_mean_of_its_queries() -> None:
    features = synthetic_features(noise=2.0)
    result = evaluate_retrieval(features)
    assert sum(result.per_class.values()) / 4 == pytest.approx(result.recall[1])  # classes are equally large
    assert list(result.per_class) == ["c0", "c1", "c2", "c3"]


@pytest.mark.parametrize("k", [1, 5])
def test_confusions_are_counted_as_one_by_one(k: int) -> None:
    features = synthetic_features(4, 9, noise=2.0, seed=1)
    knn = evaluate_knn(features, num_neighbors=(k,), centering="none")
    train, test = (
        [i for i in range(len(features.videos)) if features.videos.subsets[i] == name] for name in ("train", "test")
    )
    vectors, labels = F.normalize(features.features.double(), dim=1), features.videos.labels.tolist()
    expected = np.zeros((4, 4), dtype=int)
    for query in test:
        near = sorted(train, key=lambda i: -float(vectors[i] @ vectors[query]))[:k]
        votes = [labels[i] for i in near]
        expected[labels[query], max(votes, key=lambda c: (votes.count(c), -votes.index(c)))] += 1
    assert knn.confusion[k] == expected.tolist() and expected.sum() == len(test) and np.trace(expected) < len(test)
    assert list(knn.per_class[k].values()) == pytest.approx((100 * expected.diagonal() / expected.sum(1)).tolist())
    if k == 1:
        assert evaluate_retrieval(features, centering="none").confusion == expected.tolist()


def test_tables_print_classes_and_what_is_confused() -> None:
    result = evaluate_retrieval(synthetic_features(2, 6))
    console = Console(width=200, record=True, file=io.StringIO())
    for confusion in ([[3, 2, 1], [0, 0, 0], [0, 0, 2]], [[3, 0, 0], [0, 0, 0], [0, 0, 2]]):
        console.print(retrieval_table(replace(result, per_class={"a": 50.0, "c[1]": 100.0}, confusion=confusion)))
    text = console.export_text()
    assert text.count("R@1 per class: a 50, c[1] 100") == 2
    assert text.count("confused") == 1 and "most often confused: a as class 1 (2), a as c[1] (1)" in text


def test_ranks_beyond_the_gallery_are_left_out() -> None:
    assert list(evaluate_retrieval(synthetic_features(2, 6)).recall) == [1, 5, 10]


def test_shared_sources_are_refused_or_named() -> None:
    features = synthetic_features()
    sources = tuple(source.replace("_s5", "_s0") for source in features.videos.sources)
    shared = replace(features, videos=replace(features.videos, sources=sources))
    with pytest.raises(ValueError, match="4 sources are in both 'train' and 'test' .*'c0_s0'"):
        evaluate_retrieval(shared)
    assert evaluate_retrieval(shared, allow_shared_sources=True).overlap.num_sibling_sources == 4
    assert evaluate_knn(shared, allow_shared_sources=True, num_neighbors=[1]).overlap.num_sibling_sources == 4
    with pytest.raises(ValueError, match="have videos in common"):
        evaluate_retrieval(features, gallery="train", query="train")
    with pytest.raises(ValueError, match="have videos in common"):
        evaluate_retrieval(features, gallery="train", query="val")


def test_tuning_never_sees_the_test_part() -> None:
    features = synthetic_features(noise=2.0)
    before = evaluate_retrieval(features, gallery="fit", query="val")
    changed = features.features.clone()
    changed[[i for i, subset in enumerate(features.videos.subsets) if subset == "test"]] = 7.0
    after = evaluate_retrieval(replace(features, features=changed), gallery="fit", query="val")
    assert replace(before, features=[]) == replace(after, features=[])


def test_an_empty_part_is_an_error() -> None:
    features = synthetic_features()
    videos = replace(features.videos, subsets=("train",) * len(features.videos))
    with pytest.raises(ValueError, match="subset 'test' is empty"):
        evaluate_retrieval(replace(features, videos=videos))


def test_the_interval_is_that_of_loops_over_drawn_sources() -> None:
    rng = np.random.default_rng(1)
    sources = [f"s{i}" for i in rng.integers(12, size=60)]
    hits = torch.from_numpy(rng.random(60) < 0.4)
    names = sorted(set(sources))
    drawn_by, means = np.random.default_rng(5), []
    for _ in range(200):
        total, count = 0, 0
        for number in drawn_by.integers(len(names), size=len(names)):
            for source, hit in zip(sources, hits.tolist(), strict=True):
                if source == names[number]:
                    total, count = total + hit, count + 1
        means.append(100 * total / count)
    expected = np.quantile(means, [0.025, 0.975])
    assert bootstrap_interval(hits, sources, num_resamples=200, seed=5) == pytest.approx(tuple(expected))


def test_siblings_widen_the_interval() -> None:
    hits = torch.tensor([True, False] * 40).repeat_interleave(5)
    alone = bootstrap_interval(hits, [str(i) for i in range(400)])
    together = bootstrap_interval(hits, [str(i // 5) for i in range(400)])
    assert together[1] - together[0] > 1.5 * (alone[1] - alone[0])
    assert alone[0] < 50 < alone[1]


def test_the_same_features_give_the_same_result() -> None:
    assert evaluate_retrieval(synthetic_features(noise=2.0)) == evaluate_retrieval(synthetic_features(noise=2.0))


def test_votes_are_those_of_a_loop() -> None:
    labels = torch.randint(4, (200, 9), generator=torch.Generator().manual_seed(0))
    for k in (1, 2, 5, 9):
        for row, winner in zip(labels[:, :k].tolist(), vote(labels[:, :k], 4).tolist(), strict=True):
            counts = Counter(row)
            assert winner == max(counts, key=lambda label: (counts[label], -row.index(label)))


def test_knn_is_that_of_loops() -> None:
    features = synthetic_features(noise=2.5)
    result = evaluate_knn(features, num_neighbors=[1, 3, 20])
    train = torch.tensor([subset == "train" for subset in features.videos.subsets])
    gallery, queries = center_and_normalize(features.features[train], features.features[~train], "train")
    labels, query_labels = features.videos.labels[train].tolist(), features.videos.labels[~train].tolist()
    for k in (1, 3, 20):
        right = 0
        for neighbors, label in zip(nearest_twin(queries, gallery, k), query_labels, strict=True):
            votes = [labels[i] for i in neighbors]
            counts = Counter(votes)
            right += label == max(counts, key=lambda one: (counts[one], -votes.index(one)))
        assert result.top1[k] == pytest.approx(100 * right / len(query_labels))
    assert result.top1[1] == pytest.approx(evaluate_retrieval(features).recall[1])
    with pytest.raises(ValueError, match="must be 1 to 32"):
        evaluate_knn(features, num_neighbors=[33])


def test_effective_rank_counts_directions() -> None:
    assert effective_rank(torch.ones(10, 4)) == 1.0
    assert effective_rank(torch.eye(50)) == pytest.approx(49, rel=1e-3)
    line = torch.linspace(-1, 1, 20)[:, None] * torch.tensor([[1.0, 2.0, 3.0]])
    assert effective_rank(line) == pytest.approx(1, abs=1e-3)


def test_unlabeled_videos_cannot_be_queries() -> None:
    features = synthetic_features()
    videos = VideoTable(
        features.videos.ids, features.videos.sources, torch.full((48,), -1), features.videos.subsets, ()
    )
    with pytest.raises(ValueError, match="none of the 48 videos has a label"):
        evaluate_retrieval(replace(features, videos=videos))
