"""Collapse: noticed by rank and spread, stops or warns, and does so in a run that really collapses."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.methods.memory_bank import MemoryBanks
from covid_cmsf.training import monitor
from covid_cmsf.training.config import LoggingConfig
from covid_cmsf.training.monitor import MAX_ENTRIES, CollapseError, bank_metrics, check_collapse, read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.train_state import TrainState
from tests.training.factories import make_config, stop_at

STOP, WARN = LoggingConfig(on_collapse="stop"), LoggingConfig(on_collapse="warn")


def metrics(rank: float, std: float = 1.0) -> dict[str, float]:
    return {"effective_rank": rank, "embedding_std": std}


def filled(rows: torch.Tensor, num_rows: int) -> MemoryBanks:
    banks, numbers = MemoryBanks(num_rows, {"target": rows.shape[1]}), torch.arange(len(rows))
    banks.push_({"target": rows}, videos=numbers, sources=numbers, labels=numbers)
    return banks


def test_a_rank_below_half_of_the_best_is_a_collapse() -> None:
    progress = TrainState()
    for rank in (3.0, 10.0, 6.0, 5.01):  # it rises while the bank fills
        assert check_collapse(metrics(rank), progress, STOP, warned=False) is False
    assert progress.best_rank == 10
    with pytest.raises(CollapseError, match=r"effective rank 4.9 \(best so far 10.0\).*output_batch_norm"):
        check_collapse(metrics(4.9), progress, STOP, warned=False)


def test_a_spread_near_zero_is_a_collapse() -> None:
    assert check_collapse(metrics(5, 0.1), TrainState(), STOP, warned=False) is False
    with pytest.raises(CollapseError, match=r"spread 0.09"):
        check_collapse(metrics(5, 0.09), TrainState(), STOP, warned=False)


def test_a_warning_comes_once(caplog: pytest.LogCaptureFixture) -> None:
    progress, warned = TrainState(best_rank=10), False
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            warned = check_collapse(metrics(2), progress, WARN, warned=warned)
    assert warned and len(caplog.records) == 1 and "collapsing" in caplog.text


def test_a_bank_that_is_nearly_empty_says_nothing() -> None:
    assert check_collapse({"bank_filled": 1.0}, TrainState(), STOP, warned=False) is False
    assert bank_metrics(filled(torch.ones(1, 4), 8)).keys() == {"bank_filled", "bank_age"}


def test_the_facts_of_a_bank_are_of_its_filled_rows() -> None:
    rows = F.normalize(torch.randn(6, 4), dim=1)
    found = bank_metrics(filled(rows, 100))
    assert found["bank_filled"] == 6
    assert found["embedding_std"] == pytest.approx(float(rows.std(0).mean()) * 2, rel=1e-5)
    centered = (rows - rows.mean(0)).double()
    shares = torch.linalg.svdvals(centered) ** 2
    shares = shares / shares.sum()
    assert found["effective_rank"] == pytest.approx(float(torch.exp(-(shares * shares.log()).sum())), rel=1e-4)
    assert (
        bank_metrics(filled(F.normalize(torch.randn(MAX_ENTRIES + 50, 2), dim=1), MAX_ENTRIES + 50))["effective_rank"]
        <= 2
    )


# BYOL without a slow target and with a high rate gives up direction after direction, while its loss falls.
HEALTHY: dict[str, Any] = {"method": {"name": "byol_asym", "bank_size": 16}}
COLLAPSING: dict[str, Any] = {
    "method": {"name": "byol_asym", "bank_size": 16, "ema_momentum": 0.0},
    "optimizer": {"lr": 0.01},
    "schedule": {"epochs": 8},
}


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Effective ranks that a run measures step by step, whatever it learns: they rise, then fall below half."""
    series = [3.0, 6.0, 8.0, 8.0, 5.0, 4.1, 3.9, 3.0, 2.0, 1.5]
    left = iter(series)
    monkeypatch.setattr(monitor, "effective_rank", lambda embeddings: next(left))
    return series


def test_a_run_that_collapses_stops(clips: Path, tmp_path: Path, ranks: list[float]) -> None:
    with pytest.raises(CollapseError, match=r"step 7: .* collapsing: effective rank 3.9 \(best so far 8.0\)"):
        run_training(make_config(clips, logging={"on_collapse": "stop"}, **HEALTHY), tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["effective_rank"] for line in lines] == ranks[:6]
    assert (tmp_path / "run" / "checkpoints" / "last.pt").is_file()


def test_the_best_rank_survives_a_stop(
    clips: Path, tmp_path: Path, ranks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(clips, logging={"on_collapse": "stop"}, **HEALTHY)
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        assert run_training(config, tmp_path / "run") == "stopped"
    with pytest.raises(CollapseError, match=r"step 7: .*best so far 8.0"):
        run_training(config, tmp_path / "run")


def test_a_run_that_collapses_only_warns_if_so_wished(
    clips: Path, tmp_path: Path, ranks: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert run_training(make_config(clips, **HEALTHY), tmp_path / "run") == "finished"
    (warning,) = [record.message for record in caplog.records if "collapsing" in record.message]
    assert "longer InfoNCE start" in warning
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["effective_rank"] for line in lines] == ranks


def test_a_contrastive_run_is_not_told_to_start_with_infonce(
    clips: Path, tmp_path: Path, ranks: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        run_training(make_config(clips), tmp_path / "run")
    (warning,) = [record.message for record in caplog.records if "collapsing" in record.message]
    assert "InfoNCE" not in warning and "learning rate" in warning


@pytest.mark.slow
def test_the_rank_falls_where_nothing_keeps_it_up(clips: Path, tmp_path: Path) -> None:
    """A direction, which holds on every CPU; by how much it falls does not."""
    run_training(make_config(clips, **COLLAPSING), tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    measured = [line["effective_rank"] for line in lines]
    assert len(lines) == 40 and measured[-1] < 0.9 * max(measured)
