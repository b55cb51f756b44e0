"""Worker processes of data loaders leave nothing behind."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from covid_cmsf import exit_codes

ROOT = Path(__file__).parents[2]
# A loader whose workers are alive when the process ends.
SCRIPT = """
import os, signal, sys
import torch
from torch.utils.data import DataLoader
from covid_cmsf.views.loader import init_worker, worker_start_method

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        return torch.full((4,), index)

def stop(number, frame):
    sys.exit(75)

if __name__ == "__main__":
    loader = DataLoader(
        Numbers(), batch_size=2, num_workers=1, worker_init_fn=init_worker,
        multiprocessing_context=worker_start_method(1), persistent_workers=True,
    )
    batches = iter(loader)
    assert torch.equal(next(batches)[:, 0], torch.tensor([0, 1]))
    if sys.argv[1] == "stopped":
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        os.killpg(0, signal.Signals[sys.argv[2]])
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", [["done"], ["stopped", "SIGTERM"], ["stopped", "SIGINT"]], ids=" ".join)
def test_no_temporary_folder_is_left(tmp_path: Path, end: list[str]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with tempfile.TemporaryDirectory() as temporary:  # a short path: those of sockets have at most 107 characters
        environment = {**os.environ, "TMPDIR": temporary, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(tmp_path / "script.py"), *end]
        ended = subprocess.run(command, env=environment, start_new_session=True, timeout=900)
        assert ended.returncode == (0 if end == ["done"] else exit_codes.INTERRUPTED)
        assert list(Path(temporary).glob("pymp-*")) == []
