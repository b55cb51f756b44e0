"""Two processes with a GPU each (NCCL) do what one process with the whole batch does."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.evaluation.finetune.config import finetune_config
from covid_cmsf.evaluation.finetune.run import FinetuneResult, run_finetune
from covid_cmsf.training.run import run_training
from tests.evaluation.factories import SyntheticClips, small_encoder
from tests.training.command import write_config_file
from tests.training.factories import losses, make_config

ROOT = Path(__file__).parents[2]


@pytest.mark.multi_gpu
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_two_processes_have_the_losses_of_one(
    gradient_checkpointing: bool, clips: Path, rgb_weights: Path, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"init": str(rgb_weights), "optimizer": {"name": "sgd", "lr": 0.02}}
    values |= {"batch_norm": {"mode": "frozen"}, "precision": "fp32"}
    runtime = {"device": "cuda", "gradient_checkpointing": gradient_checkpointing}
    chosen = make_config(clips, runtime=runtime, **values)
    assert run_training(chosen, tmp_path / "one") == "finished"
    written = write_config_file(chosen, tmp_path / "run.yaml")
    jobs = [{"config": str(written), "folder": str(tmp_path / "two"), "stops": [], "again": True}]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    program = [str(ROOT / "tests" / "training" / "distributed_jobs.py"), str(tmp_path / "jobs.json")]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run([*launcher, *program], capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stderr[-6000:]
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)


@pytest.mark.multi_gpu
@pytest.mark.parametrize("mode", ["linear", "finetune"])
def test_two_gpus_train_the_classifier_of_one(mode: str, tmp_path: Path) -> None:
    def fit(name: str, gpus: int) -> FinetuneResult:
        chosen = finetune_config(mode, batch_size=6, num_crops=1, epochs=2, dropout=0.0)
        devices = [torch.device("cuda", number) for number in range(gpus)]
        return run_finetune(small_encoder()[1], SyntheticClips(), tmp_path / name, chosen, device=devices)

    one, two = fit("one", 1), fit("two", 2)
    # In fine-tuning each GPU has batch norm statistics of its own: only a frozen encoder's losses are equal.
    tolerance = 1e-3 if mode == "linear" else 0.5
    for first, second in zip(one.history, two.history, strict=True):
        assert second["loss"] == pytest.approx(first["loss"], rel=tolerance)
