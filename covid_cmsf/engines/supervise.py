"""Run one job on the machine that the scheduler chose: `python -m covid_cmsf.engines.supervise FOLDER NAME`.

Signals are passed on as SIGTERM: the command saves and ends with exit code 75. After Slurm's warning before the time
limit (SIGUSR1) the job is put back into the queue. It is not after SIGTERM: that is how Slurm cancels a job, and a
preempted one it puts back itself.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from covid_cmsf import exit_codes
from covid_cmsf.engines.jobs import FINISHED, job_file
from covid_cmsf.files import read_text, write_text_atomic

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2)  # there is still time to save and to be put back
PR_SET_PDEATHSIG = 1


def supervise(folder: Path, name: str) -> tuple[int, bool]:
    """Run a job's command; return its exit code and whether a warning came.

    NAME.exit has the exit code of a command that was not interrupted.
    """
    command = json.loads(read_text(job_file(folder, name, "json")))["command"]
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(signal.SIGTERM)

    with job_file(folder, name, "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "covid_cmsf", *command],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,
        )
        before = {number: signal.signal(number, forward) for number in SIGNALS}
        try:
            code = _wait(process)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    if code != exit_codes.INTERRUPTED and not (code < 0 and received):
        code = code if code >= 0 else 128 - code  # killed, for example because the memory was full: as shells say it
        write_text_atomic(job_file(folder, name, "exit"), f"{code}\n")
    return code, any(number in WARNINGS for number in received)


def _wait(process: "subprocess.Popen[bytes]") -> int:
    """Return the exit code. Python looks around every second: Ray cancels a task by an interrupt that is no signal."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=1.0)


def _end_with_parent() -> None:
    """Let the kernel send SIGTERM to this process when its parent dies, as it does when a cluster's node is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def slurm_job_id() -> str | None:
    """Return what scontrol calls this job, None outside of Slurm. SLURM_JOB_ID of one task means the whole array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID")


def main() -> None:
    """Run a job of Slurm."""
    folder, name = Path(sys.argv[1]), sys.argv[2]
    code, warned = supervise(folder, name)
    if code == exit_codes.INTERRUPTED and warned and (job_id := slurm_job_id()):
        subprocess.run(["scontrol", "requeue", job_id], check=True)
        signal.pause()  # Slurm ends this process before it starts the job again
    sys.exit(exit_codes.SUCCESS if code in FINISHED else abs(code))  # jobs that need this one start after 0 only


if __name__ == "__main__":
    main()
