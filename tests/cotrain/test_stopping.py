"""A stage that receives a signal while its workers load data."""

import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.executor import _stage_process
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.plan import EvaluationConfig, StageConfig
from covid_cmsf.training.config import RuntimeConfig
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.loader import init_worker

TIMEOUT = 180  # seconds


class Numbers(Dataset[int]):
    """More samples than the test reads."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        return index


def read_numbers(stage: Stage, slot: str) -> None:
    """Read batches without end, as extraction does; a file is created after the first."""
    loader: DataLoader[Any] = DataLoader(
        Numbers(), num_workers=2, worker_init_fn=init_worker, multiprocessing_context="spawn"
    )
    for _ in loader:
        (stage.folder / "started").touch()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stage_exits_on_a_signal_while_workers_load_its_data(number: int, tmp_path: Path) -> None:
    data = tmp_path / "data"  # nothing is read of it
    spec = StageConfig(name="stage", random="c21d_tiny", modality="rgb")
    stage = Stage(
        spec=spec,
        number=0,
        folder=tmp_path / "stage",
        modality="rgb",
        config=None,
        needs=(),
        key="key",
        clips=str(data),
        split="1",
        views=ViewConfig(),
        seed=0,
        evaluation=EvaluationConfig(),
        runtime=RuntimeConfig(),
    )
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_stage_process, args=(read_numbers, stage, "cpu"))
    process.start()
    assert process.pid is not None
    try:
        start = time.monotonic()
        while not (stage.folder / "started").exists():
            assert process.is_alive() and time.monotonic() - start < TIMEOUT
            time.sleep(0.05)
        os.kill(process.pid, number)
        process.join(TIMEOUT)
        assert process.exitcode == exit_codes.INTERRUPTED
    finally:
        process.kill()
