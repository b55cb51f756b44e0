"""Neighbors as the table measured them, the choice of queries, and the stages of a plan on one list of videos."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covid_cmsf.evaluation.features.file import load_features, save_features
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from covid_cmsf.report.gallery import before_and_after, build_gallery, choose_queries, outcome
from covid_cmsf.report.ranking import cosines, rank_others, rank_queries, rank_stage
from covid_cmsf.report.runs import StageRun, read_run
from tests.evaluation.factories import synthetic_features
from tests.report.plan_factories import features_of


@pytest.mark.parametrize("protocol", ["clean", "coclr"])
@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_hits_of_single_queries_add_up_to_the_recall_of_the_table(protocol: str, noise: float) -> None:
    features = synthetic_features(5, 12, noise=noise, protocol=protocol)
    result, ranking = evaluate_retrieval(features), rank_queries(features)
    for k, recall in result.recall.items():
        hits = sum(0 < rank <= k for rank in ranking.first_correct.tolist())
        assert 100 * hits / result.num_query == pytest.approx(recall, abs=1e-9)
    assert ranking.r1 == result.recall[1]


def test_neighbors_are_those_of_a_slow_search() -> None:
    features = synthetic_features(3, 6, noise=2.0)
    ranking = rank_queries(features)
    subsets, labels = features.videos.subsets, features.videos.labels.tolist()
    train = [i for i, subset in enumerate(subsets) if subset == "train"]
    mean = features.features[train].double().mean(0)
    unit = torch.nn.functional.normalize(features.features.double() - mean, dim=1)
    for place, query in enumerate(ranking.queries.tolist()):
        assert subsets[query] == "test"
        slow = sorted((-float(unit[i] @ unit[query]), i) for i in train)[: ranking.neighbors.shape[1]]
        assert ranking.neighbors[place].tolist() == [i for _, i in slow]
        assert ranking.similarity[place].tolist() == pytest.approx([-value for value, _ in slow], abs=1e-5)
        ranks = [rank for rank, (_, i) in enumerate(slow, start=1) if labels[i] == labels[query]]
        assert int(ranking.first_correct[place]) == (ranks[0] if ranks else 0)


def test_cosines_do_not_depend_on_the_block_size() -> None:
    generator = torch.Generator().manual_seed(0)
    queries, gallery = torch.randn(7, 4, generator=generator), torch.randn(9, 4, generator=generator)
    found = torch.randint(0, 9, (7, 3), generator=generator)
    slow = [[float(queries[q] @ gallery[found[q, k]]) for k in range(3)] for q in range(7)]
    for block_size in (1, 3, 100):
        assert torch.allclose(cosines(queries, gallery, found, block_size=block_size), torch.tensor(slow), atol=1e-6)


def test_outcomes_compare_before_and_after() -> None:
    assert [outcome(a, b) for a, b in itertools.product([False, True], repeat=2)] == [
        *("wrong", "improved", "hurt", "right")
    ]


def test_every_class_and_every_kind_is_shown_before_any_twice() -> None:
    labels = [0] * 20 + [1] * 20 + [2] * 2
    kinds = ["right"] * 17 + ["hurt", "wrong", "improved"] + ["right"] * 20 + ["wrong"] * 2
    chosen = choose_queries(labels, kinds, 12)
    assert len(chosen) == len(set(chosen)) == 12
    assert sorted(labels[one] for one in chosen) == [0] * 5 + [1] * 5 + [2] * 2
    assert {kinds[one] for one in chosen if labels[one] == 0} == {"right", "hurt", "wrong", "improved"}
    assert choose_queries(labels, kinds, 12) == chosen != choose_queries(labels, kinds, 12, seed=1)
    assert choose_queries(labels, kinds, 3, always_shown=[30, 7])[:2] == [30, 7]
    assert sorted(choose_queries(labels, kinds, 99)) == list(range(42))


def rank(stage: StageRun):  # type: ignore[no-untyped-def]
    return rank_stage(stage, umap=False)


def test_stages_are_put_on_one_list_of_videos(plan: Path) -> None:
    stages = read_run(plan, "plan").first_seed.stages
    gallery, notes = build_gallery(stages, rank, num_shown=7, num_neighbors=3)
    assert gallery is not None and not notes
    assert [stage.kind for stage, _ in gallery.stages] == ["pretrain"] * 2 + ["round"] * 2 + ["control"] * 2
    values, found = gallery.values(), gallery.neighbors()
    assert len(values["shown"]) == 7 and len(values["labels"]) == len(values["ids"]) == len(set(values["ids"]))
    for number, (stage, _) in enumerate(gallery.stages):
        assert stage.features is not None
        features = load_features(stage.features)
        hits = [one == 1 for one in values["stages"][number]["first_correct"]]
        assert 100 * sum(hits) / len(hits) == pytest.approx(stage.result["r1"], abs=1e-9)
        slow = rank_queries(features)
        for place, query in enumerate(values["shown"]):
            row = [features.videos.ids[i] for i in slow.queries.tolist()].index(values["ids"][query])
            own = [values["ids"][i] for i in found[number]["indices"][3 * place : 3 * place + 3]]
            assert own == [features.videos.ids[i] for i in slow.neighbors[row, :3].tolist()]
            assert found[number]["similarity"][3 * place] == round(1000 * float(slow.similarity[row, 0]))
            answer = values["stages"][number]["prediction"][query]
            assert answer == int(features.videos.labels[slow.neighbors[row, 0]])


def test_the_start_is_compared_with_the_last_round(plan: Path) -> None:
    stages = read_run(plan, "plan").first_seed.stages
    before, after = before_and_after(stages, "flow")
    assert (stages[before].name, stages[after].name) == ("infonce-flow", "cmsf-flow-1")


def test_a_stage_that_lacks_a_video_says_so_by_none(plan: Path, tmp_path: Path) -> None:
    stages = read_run(plan, "plan").first_seed.stages
    assert stages[2].features is not None
    features = load_features(stages[2].features)
    gone = features.videos.subsets.index("test")
    kept = torch.tensor([i for i in range(len(features.videos)) if i != gone])
    fewer = replace(features, videos=features.videos.take(kept), features=features.features[kept])
    (tmp_path / stages[2].name).mkdir()
    save_features(tmp_path / stages[2].name / "features.safetensors", fewer)
    other = replace(stages[2], folder=tmp_path / stages[2].name, retrieval={}, result={})
    gallery, _ = build_gallery([stages[0], other], rank, num_shown=99, num_neighbors=2)
    assert gallery is not None
    place = gallery.ids.index(features.videos.ids[gone])
    assert gallery.values()["stages"][1]["first_correct"][place] is None and gallery.maps()[1]["pca_x"][place] is None
    shown = gallery.shown.index(place)
    assert gallery.neighbors()[1]["indices"][2 * shown : 2 * shown + 2] == [-1, -1]


def test_features_that_are_not_those_of_the_table_are_noted(plan: Path) -> None:
    stage = read_run(plan, "plan").first_seed.stages[0]
    wrong = replace(stage, retrieval={**stage.retrieval, "recall": {"1": 12.5}})
    _, notes = build_gallery([wrong], rank, num_shown=3, num_neighbors=2)
    assert len(notes) == 1 and "its result says 12.50" in notes[0]


def test_features_that_cannot_be_ranked_are_noted(plan: Path, tmp_path: Path) -> None:
    stage = read_run(plan, "plan").first_seed.stages[0]
    (tmp_path / "features.safetensors").write_bytes(b"short")
    gallery, notes = build_gallery([replace(stage, folder=tmp_path)], rank, num_shown=3, num_neighbors=2)
    assert gallery is None and "truncated" in notes[0]


def test_without_labels_every_video_has_the_nearest_of_all_others() -> None:
    features = features_of(2.0, 0)
    videos = features.videos
    bare = replace(features, videos=replace(videos, labels=torch.full_like(videos.labels, -1)))
    ranking = rank_others(bare)
    centered = bare.features - bare.features.mean(0)
    unit = centered / centered.norm(dim=1, keepdim=True)
    for query, neighbors in zip(ranking.queries.tolist(), ranking.neighbors.tolist(), strict=True):
        slow = sorted((i for i in range(len(unit)) if i != query), key=lambda i: -float(unit[query] @ unit[i]))
        assert neighbors[:5] == slow[:5]
    assert ranking.queries.tolist() == list(range(len(unit))) and not ranking.correct.any()
    assert rank_others(features).correct.any()  # with labels, but without test videos


@pytest.mark.parametrize("change", ["unlabeled", "no test videos"])
def test_a_stage_without_labels_or_test_videos_has_neighbors_and_a_map(plan: Path, tmp_path: Path, change: str) -> None:
    stage = read_run(plan, "plan").first_seed.stages[0]
    assert stage.features is not None
    features = load_features(stage.features)
    labels = torch.full_like(features.videos.labels, -1) if change == "unlabeled" else features.videos.labels
    videos = replace(features.videos, labels=labels, subsets=("train",) * len(features.videos))
    save_features(tmp_path / "features.safetensors", replace(features, videos=videos))
    bare = replace(stage, folder=tmp_path, result={}, retrieval={}, linear={})
    gallery, notes = build_gallery([bare], rank, num_shown=3, num_neighbors=2)
    assert gallery is not None and notes == [] and gallery.num_queries == len(videos)
    values = gallery.values()
    assert values["labeled"] == (change != "unlabeled") and values["stages"][0]["r1"] is None
    assert values["stages"][0]["evaluation"]["gallery"] == "all others"
    assert all(index >= 0 for index in gallery.neighbors()[0]["indices"]) and len(gallery.maps()[0]["pca_x"]) == len(
        videos
    )
    if change == "unlabeled":
        assert set(values["stages"][0]["first_correct"]) == set(values["stages"][0]["prediction"]) == {None}
