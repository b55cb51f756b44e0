"""Large sets are computed in chunks: the same neighbors, the same statistics, the same optimum."""

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.evaluation import chunks, nearest
from covid_cmsf.evaluation.features.inference import video_features
from covid_cmsf.evaluation.knn import evaluate_knn
from covid_cmsf.evaluation.probes import linear
from covid_cmsf.evaluation.probes.linear import evaluate_linear, feature_statistics
from covid_cmsf.evaluation.retrieval import chance_r1, evaluate_retrieval
from covid_cmsf.models import effective_rank as effective_rank_module
from covid_cmsf.models.effective_rank import effective_rank
from tests.evaluation.factories import synthetic_features


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 7 rows of 16 values, tiles of 10 gallery entries, fp32 instead of float64 copies."""
    monkeypatch.setattr(chunks, "CHUNK_VALUES", 7 * 16)
    monkeypatch.setattr(nearest, "TILE_SIZE", 10)
    monkeypatch.setattr(effective_rank_module, "CHUNK_ROWS", 7)
    monkeypatch.setattr(linear, "MAX_DOUBLES", 100)


def test_rows_are_visited_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK_VALUES", 12)
    for num_rows, num_columns in ((10, 4), (9, 4), (3, 100), (0, 4)):
        visited = [row for rows in chunks.row_chunks(num_rows, num_columns) for row in range(rows.start, rows.stop)]
        assert visited == list(range(num_rows))


def test_results_do_not_depend_on_chunks(request: pytest.FixtureRequest) -> None:
    features = synthetic_features(noise=2.0)
    windows = torch.arange(48).repeat_interleave(3)
    values = features.windows[windows] + torch.arange(144)[:, None] * 0.01

    def results() -> list[object]:
        return [
            [evaluate_retrieval(features, centering=mode) for mode in ("train", "own", "none")],
            evaluate_knn(features, num_neighbors=(1, 5, 20)),
            evaluate_linear(features).scores,
            evaluate_linear(features).val_accuracy,
        ]

    whole = results()
    averaged, rank = video_features(values, windows, 48), effective_rank(features.features)
    statistics = feature_statistics(features.windows)
    request.getfixturevalue("small_chunks")
    in_chunks = results()
    for one, other in zip(whole[0], in_chunks[0], strict=True):  # type: ignore[call-overload]
        assert one.recall == other.recall and one.chance_recall == other.chance_recall
        assert one.effective_rank == pytest.approx(other.effective_rank, rel=1e-6)
    assert whole[1:] == in_chunks[1:]
    assert torch.equal(video_features(values, windows, 48), averaged)
    assert effective_rank(features.features) == pytest.approx(rank, rel=1e-9)
    for one, other in zip(feature_statistics(features.windows), statistics, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("k", [1, 4, 35])
def test_tiles_of_a_gallery_give_the_neighbors_of_the_whole(monkeypatch: pytest.MonkeyPatch, k: int) -> None:
    few = F.normalize(torch.randn(9, 16, generator=torch.Generator().manual_seed(0)), dim=1)
    gallery = few[torch.randint(9, (37,), generator=torch.Generator().manual_seed(1))]  # ties across tiles
    in_tiles = nearest.nearest(few, gallery, k)
    monkeypatch.undo()
    assert torch.equal(in_tiles, nearest.nearest(few, gallery, k))


def test_chance_is_the_share_of_pairs_of_one_class() -> None:
    labels, gallery = torch.tensor([0, 2, 2, 5]), torch.tensor([0, 0, 1, 2, 3])
    expected = sum(int(a == b) for a in labels.tolist() for b in gallery.tolist()) / 20
    assert chance_r1(labels, gallery) == pytest.approx(100 * expected)
