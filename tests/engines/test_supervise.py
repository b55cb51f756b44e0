"""A job's supervisor: exit codes, signals, and a command that never outlives it."""

import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and PR_SET_PDEATHSIG are Linux's")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_supervisor_takes_its_command_along(number: int, tmp_path: Path) -> None:
    write_job(tmp_path, Job("page", ("search", "serve", "nowhere")), engine="slurm")
    sleeper = tmp_path / "covid_cmsf.py"  # stands for a command that takes long: it is first on the path
    sleeper.write_text("import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    code = "import sys; sys.path.insert(0, sys.argv.pop()); from covid_cmsf.engines.supervise import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path), "page", str(ROOT)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    log = job_file(tmp_path, "page", "log")
    deadline = time.monotonic() + 60
    while not (log.is_file() and log.read_text()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    (child,) = children(process.pid)
    process.send_signal(number)
    process.wait(timeout=60)
    while not has_ended(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert read_exit_code(tmp_path, "page") is None  # it has not ended for good


def test_jobs_have_unique_names_and_need_earlier_ones() -> None:
    check_jobs([Job("a", ()), Job("b", (), needs=("a",))])
    with pytest.raises(ValueError, match="two jobs have the name 'a'"):
        check_jobs([Job("a", ()), Job("a", ())])
    with pytest.raises(ValueError, match="'b' needs 'c', which is not an earlier job"):
        check_jobs([Job("b", (), needs=("c",)), Job("c", ())])
