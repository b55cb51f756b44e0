"""A stage in several processes: torchrun is started beside, told to stop when the stage is, and never left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from covid_cmsf.training.signals import SIGNALS

GRACE = 60.0  # seconds to save and end

_launched: list[subprocess.Popen[bytes]] = []


def launch(folder: Path, *, num_processes: int, gpus: str | None) -> str:
    """Trains the run whose settings are in `folder`; "finished" or "stopped". `gpus` are numbers such as 0,1."""
    words = ["-m", "torch.distributed.run", f"--nproc-per-node={num_processes}", "--standalone"]
    environment = {**os.environ, **({"CUDA_VISIBLE_DEVICES": gpus} if gpus is not None else {})}
    command = [sys.executable, *words, "-m", "covid_cmsf", "train", str(folder), "--accept-changes"]
    asked = False

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        process.send_signal(signal.SIGTERM)

    process = subprocess.Popen(command, env=environment, start_new_session=True)
    _launched.append(process)
    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _launched.remove(process)
    if code == 0:
        return "finished"
    if asked:  # torchrun has an exit code of its own
        return "stopped"
    raise RuntimeError(f"torchrun ended with exit code {code}; see {folder / 'log.txt'}")


def end_launched() -> None:
    """Stops what was launched, gently if there is time. For when the plan itself has died."""
    for process in _launched:
        process.terminate()
    for process in _launched:
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
