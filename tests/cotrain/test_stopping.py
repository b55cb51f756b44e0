"""A stage that is asked to stop while its workers load data."""

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
from covid_cmsf.views.loader import init_worker

PATIENCE = 180  # seconds; a stage that hangs would wait for ever


class Numbers(Dataset[int]):
    """More than anyone will read."""

    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, index: int) -> int:
        return index


def read_numbers(begun: Any, device: str) -> None:
    """The work of a stage: reads on and on, as extraction does; `begun` is a file that says so."""
    loader: DataLoader[Any] = DataLoader(
        Numbers(), num_workers=2, worker_init_fn=init_worker, multiprocessing_context="spawn"
    )
    for _ in loader:
        Path(begun).touch()
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_stage_ends_when_asked_to_while_workers_load_its_data(number: int, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    context = multiprocessing.get_context("forkserver")
    process = context.Process(target=_stage_process, args=(read_numbers, begun, "cpu"))
    process.start()
    assert process.pid is not None
    try:
        waited = time.monotonic()
        while not begun.exists():
            assert process.is_alive() and time.monotonic() - waited < PATIENCE
            time.sleep(0.05)
        os.kill(process.pid, number)
        process.join(PATIENCE)
        assert process.exitcode == exit_codes.INTERRUPTED
    finally:
        process.kill()
