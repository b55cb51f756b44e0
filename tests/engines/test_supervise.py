"""A job's supervisor: exit codes, signals, and a command that never outlives it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from covid_cmsf.engines.jobs import Job, check_jobs, ended_state, job_file, read_exit_code, write_job

ROOT = Path(__file__).parent.parent.parent


def start(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "covid_cmsf.engines.supervise", str(folder), name]
    return subprocess.Popen(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # also while it is read
        return True


@pytest.mark.parametrize(("name", "code", "state"), [("--version", 0, "done"), ("no-such-command", 2, "failed")])
def test_the_exit_code_is_kept(name: str, code: int, state: str, tmp_path: Path) -> None:
    write_job(tmp_path, Job("one", (name,)), engine="slurm")
    assert read_exit_code(tmp_path, "one") is None
    assert start(tmp_path, "one").wait(timeout=120) == code
    ended = ended_state(tmp_path, "one", "7")
    assert ended is not None and (ended.state, ended.job_id) == (state, "7")
    assert job_file(tmp_path, "one", "log").read_text()


STARTED: list["subprocess.Popen[bytes]"] = []


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Iterator[None]:
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.wait()


def start_stand_in(folder: Path, program: str, **environment: str) -> "subprocess.Popen[bytes]":
    """Supervise a program in the place of the toolkit's command; return when it has printed something."""
    write_job(folder, Job("one", ("train",)), engine="slurm")
    (folder / "covid_cmsf.py").write_text(program)  # it is first on the path
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from covid_cmsf.engines.supervise import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(folder), "one", str(ROOT)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), **environment},
    )
    STARTED.append(process)
    log = job_file(folder, "one", "log")
    wait_until(lambda: process.poll() is not None or (log.is_file() and bool(log.read_text())))
    assert process.poll() is None
    return process


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and PR_SET_PDEATHSIG are Linux's")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_supervisor_takes_its_command_along(number: int, tmp_path: Path) -> None:
    process = start_stand_in(tmp_path, "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    (child,) = children(process.pid)
    process.send_signal(number)
    process.wait(timeout=60)
    wait_until(lambda: has_ended(child))
    assert read_exit_code(tmp_path, "one") is None  # it has not ended for good


SAVES = """\
import signal, sys, time
def save(number, frame):
    print("saved after", signal.Signals(number).name, flush=True)
    sys.exit({code})
signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
"""
ONE, TASK = {"SLURM_JOB_ID": "41"}, {"SLURM_JOB_ID": "41", "SLURM_ARRAY_JOB_ID": "41", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize(("job", "put_back"), [(ONE, "41"), (TASK, "41_3")])  # 41 alone would be the whole array
def test_a_job_that_has_saved_after_a_warning_is_put_back(
    number: int, job: dict[str, str], put_back: str, tmp_path: Path
) -> None:
    process = start_stand_in(tmp_path, SAVES.format(code=75), **job, **fake_scontrol(tmp_path))
    process.send_signal(number)
    wait_until((tmp_path / "calls").is_file)
    assert (tmp_path / "calls").read_text() == f"requeue {put_back}\n"
    assert "saved after SIGTERM" in job_file(tmp_path, "one", "log").read_text()
    time.sleep(0.3)
    assert process.poll() is None  # an end would be the job's: Slurm ends it, to start it again
    process.terminate()
    assert process.wait(timeout=60) != 0
    assert read_exit_code(tmp_path, "one") is None


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGTERM, 75),  # canceled, or preempted: then Slurm puts it back
        (signal.SIGUSR1, 0),  # it was done before it could stop
        (signal.SIGUSR1, 1),
    ],
)
def test_a_job_that_was_canceled_or_has_ended_is_not_put_back(number: int, code: int, tmp_path: Path) -> None:
    process = start_stand_in(tmp_path, SAVES.format(code=code), **ONE, **fake_scontrol(tmp_path))
    process.send_signal(number)
    assert process.wait(timeout=60) == code
    assert not (tmp_path / "calls").exists()
    assert read_exit_code(tmp_path, "one") == (None if code == 75 else code)


def fake_scontrol(folder: Path) -> dict[str, str]:
    """Return an environment with a `scontrol` that writes its arguments to `calls`."""
    program = folder / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" > {folder / "new"}; mv {folder / "new"} {folder / "calls"}\n')
    program.chmod(0o755)
    return {"PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def test_jobs_have_unique_names_and_need_earlier_ones() -> None:
    check_jobs([Job("a", ()), Job("b", (), needs=("a",))])
    with pytest.raises(ValueError, match="two jobs have the name 'a'"):
        check_jobs([Job("a", ()), Job("a", ())])
    with pytest.raises(ValueError, match="'b' needs 'c', which is not an earlier job"):
        check_jobs([Job("b", (), needs=("c",)), Job("c", ())])
