"""runtime.gradient_checkpointing: the same run, to the last bit."""

from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.devices import GpuMemoryError
from covid_cmsf.training.dry_run import dry_run
from covid_cmsf.training.failures import memory_advice
from covid_cmsf.training.run import run_training
from tests.training.factories import differing, make_config

CASES: dict[str, dict[str, Any]] = {
    "infonce": {},
    "groups": {"batch_norm": {"groups": 2}},
    "shuffled": {"batch_norm": {"shuffle": True}, "method": {"name": "msf", "bank_size": 16}},
    "frozen": {"batch_norm": {"mode": "frozen"}},
    "accumulated": {"optimizer": {"accumulate": 2, "clip_norm": 1.0}},
    "bf16": {"precision": "bf16"},
    "dropout": {"method": {"name": "xent", "dropout": 0.5}},
}


@pytest.mark.parametrize("name", CASES)
def test_a_run_is_the_same_to_the_last_bit(name: str, clips: Path, tmp_path: Path) -> None:
    for chosen in (False, True):
        config = make_config(clips, runtime={"gradient_checkpointing": chosen}, schedule={"epochs": 1}, **CASES[name])
        assert run_training(config, tmp_path / str(chosen)) == "finished"
    assert differing(tmp_path / "False", tmp_path / "True") == []


def test_a_dry_run_tells_what_it_saves(clips: Path) -> None:
    chosen = make_config(clips, runtime={"gradient_checkpointing": True})
    assert "per clip with runtime.gradient_checkpointing" in dry_run(chosen).entries["activations"]


@pytest.mark.parametrize("place", ["build.load_guides", "loop.forward_backward", "loop.update", "loop.copied_aside"])
def test_out_of_memory_names_settings(place: str, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(f"covid_cmsf.training.{place}", full)
    with pytest.raises(GpuMemoryError, match="out of GPU memory .* runtime.gradient_checkpointing=true"):
        run_training(make_config(clips), tmp_path / "run")


def test_advice_that_was_taken_is_not_given_again(clips: Path) -> None:
    taken = make_config(clips, precision="bf16", batch_size=2, runtime={"gradient_checkpointing": True})
    advice = memory_advice(taken, world_size=2)
    assert "precision=" not in advice and "gradient_checkpointing" not in advice and "accumulate" not in advice
    assert "shorter clips (views.length, now 8)" in advice and "smaller crops (views.size, now 32)" in advice
