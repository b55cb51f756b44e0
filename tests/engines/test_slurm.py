"""Plans through a real Slurm of one machine: in order, requeued in the middle, and what failed jobs leave."""

import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.run import load_plan, run_plan
from covid_cmsf.engines import slurm as slurm_module
from covid_cmsf.engines.jobs import Job, Resources, job_file
from covid_cmsf.engines.slurm import batch_script, read_queue, run_on_slurm, slurm_states, submit_jobs
from covid_cmsf.training.signals import StopRequest
from tests.cotrain.test_plans import numbers

ROOT = Path(__file__).parent.parent.parent


def command(*args: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "covid_cmsf", *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def wait_until(condition: Any, *, seconds: float = 600) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def test_a_batch_script_says_what_was_asked_for(tmp_path: Path) -> None:
    job = Job("seed-0/cmsf rgb", ("cotrain", "demo"))
    text = batch_script([job], tmp_path, Resources(cpus=4, gpus=2, sbatch=("-p", "a100", "--time=1-0")))
    lines = text.splitlines()
    assert {"#SBATCH --cpus-per-task=4", "#SBATCH --gres=gpu:2", "#SBATCH -p a100", "#SBATCH --time=1-0"} < set(lines)
    assert lines[-1].endswith(f"-m covid_cmsf.engines.supervise {tmp_path} 'seed-0/cmsf rgb'")


def test_options_and_folders_with_spaces_stay_whole_in_a_batch_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my runs"
    folder.mkdir()
    monkeypatch.chdir(folder)
    text = batch_script([Job("a", ("cotrain", "demo"))], folder, Resources(sbatch=("--comment=two words",)))
    options = [shlex.split(line.removeprefix("#SBATCH ")) for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert all(len(words) == 1 for words in options)
    assert {f"--chdir={folder}", f"--output={folder / 'jobs' / 'a.log'}", "--comment=two words"} < {
        words[0] for words in options
    }


def test_a_machine_without_slurm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match="needs Slurm's sbatch"):
        submit_jobs([Job("a", ("doctor",))], tmp_path, Resources())


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> None:
    """Shell scripts in the place of Slurm's programs, for what a real one does only when it is broken."""
    for name, script in {"squeue": "", **scripts}.items():
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_jobs_that_could_not_be_submitted_are_submitted_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, sbatch="echo 'no controller' >&2; exit 1")
    for name in ("a", "b"):
        with pytest.raises(RuntimeError, match="no controller"):
            submit_jobs([Job(name, ("doctor",))], tmp_path, Resources())
    assert {name: one.state for name, one in slurm_states(tmp_path).items()} == {"a": "lost", "b": "lost"}
    programs(tmp_path, monkeypatch, sbatch="echo 7")
    submit_jobs([Job("a", ("doctor",))], tmp_path, Resources())
    assert job_file(tmp_path, "a", "id").read_text() == "7\n"


@pytest.mark.parametrize(
    ("codes", "expected"), [([0, 0], 0), ([0, 3], exit_codes.SKIPPED_ITEMS), ([3, 1], exit_codes.FAILED)]
)
def test_skipped_items_of_a_job_are_in_the_exit_code(
    codes: list[int], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exits = [f"echo {code} > {job_file(tmp_path, name, 'exit')}" for name, code in zip("ab", codes, strict=True)]
    script = f"case $2 in */a.sh) {exits[0]};; *) {exits[1]};; esac; echo 7"  # it has ended when sbatch returns
    programs(tmp_path, monkeypatch, sbatch=script)
    jobs = [Job("a", ("doctor",)), Job("b", ("doctor",))]
    assert run_on_slurm(jobs, tmp_path, Resources(), stop=StopRequest()) == expected


def test_a_job_in_the_queue_with_another_command_is_not_taken_for_this_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(
        tmp_path, monkeypatch, sbatch=f"echo x >> {tmp_path / 'calls'}; echo 7", squeue="echo '7|PENDING|Priority'"
    )
    job = Job("a", ("cotrain", "demo", "seeds=[0]"))
    submit_jobs([job], tmp_path, Resources())
    submit_jobs([job], tmp_path, Resources())  # it waits for the one that is there
    jobs = [Job("new", ("doctor",)), Job("a", ("cotrain", "demo", "seeds=[1]"))]
    with pytest.raises(
        ValueError, match=r"job a is in the queue with another command \(covid-cmsf cotrain demo .*scancel 7"
    ):
        submit_jobs(jobs, tmp_path, Resources())
    assert (tmp_path / "calls").read_text() == "x\n" and not job_file(tmp_path, "new", "json").exists()


def test_a_controller_that_does_not_answer_for_a_while_ends_no_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slurm_module, "POLL", 0.01)
    code = job_file(tmp_path, "a", "exit")
    queue = f"test -e asked || {{ touch asked; echo 'no controller' >&2; exit 1; }}; echo 0 > {code}; echo '7|RUNNING|'"
    monkeypatch.chdir(tmp_path)
    programs(tmp_path, monkeypatch, sbatch="echo 7", squeue=queue)
    assert run_on_slurm([Job("a", ("doctor",))], tmp_path, Resources(), stop=StopRequest()) == exit_codes.SUCCESS
    assert "no controller" in caplog.text and (tmp_path / "asked").is_file()


def test_states_can_be_read_on_a_machine_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs(tmp_path, monkeypatch, sbatch="echo 7")
    submit_jobs([Job("a", ("doctor",)), Job("b", ("doctor",))], tmp_path, Resources())
    job_file(tmp_path, "a", "exit").write_text("0\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert {name: one.state for name, one in slurm_states(tmp_path).items()} == {"a": "done", "b": "unknown"}


REQUEUE = ("scontrol", "requeue")
WARN = ("scancel", "--signal=USR1", "--batch")  # what Slurm sends before the time limit


def disturb(out: Path, stage: str, *program: str) -> None:
    """Requeue a stage's job, or let it do so, when it has trained some steps, and start it again."""
    metrics = out / stage / "metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 2)
    job_id = job_file(out, stage, "id").read_text().strip()
    subprocess.run([*program, job_id], check=True)
    start_again(job_id)


def start_again(job_id: str) -> None:
    """Let a requeued job start soon: Slurm waits two minutes, and refuses to start one in the second of its end."""
    wait_until(lambda: read_queue().get(job_id, ("",))[0] == "PENDING")
    subprocess.run(["scontrol", "update", f"JobId={job_id}", "StartTime=now+2"], check=True)


@pytest.mark.slow
def test_a_plan_through_slurm_survives_a_requeue_and_a_warning_in_the_middle(slurm: None, plan: Path) -> None:
    longer = "pretrain.schedule.epochs=4"
    _, alone = run_plan(load_plan(plan, [longer]), plan.parent / "alone", plan_dir=plan.parent)
    out = plan.parent / "out"
    whole = command("cotrain", str(plan), longer, f"--out={out}", "--engine=slurm", cwd=plan.parent)
    disturbed = {"infonce-rgb": REQUEUE, "infonce-flow": WARN}  # they run side by side
    with ThreadPoolExecutor() as pool:
        done = [pool.submit(disturb, out, stage, *program) for stage, program in disturbed.items()]
        for one in done:
            one.result()
    output, _ = whole.communicate(timeout=600)
    logs = [job_file(out, stage, "log").read_text() for stage in disturbed]
    assert whole.returncode == exit_codes.SUCCESS, "\n".join([output, *logs])
    assert numbers(json.loads((out / "table.json").read_text())) == numbers(alone)
    for stage in disturbed:
        starts = (out / stage / "environment.jsonl").read_text().splitlines()
        assert len(starts) == 2 and json.loads(starts[1])["from_step"] > 0  # it went on, it did not begin again
    assert {one.state for one in slurm_states(out).values()} == {"done"}
    again = command("cotrain", str(plan), longer, f"--out={out}", "--engine=slurm", cwd=plan.parent)
    output, _ = again.communicate(timeout=300)
    assert again.returncode == exit_codes.SUCCESS and "submitted" not in output


@pytest.mark.slow
def test_jobs_that_need_a_failed_one_do_not_wait_forever(slurm: None, tmp_path: Path) -> None:
    jobs = [Job("bad", ("no-such-command",)), Job("after", ("--version",), needs=("bad",)), Job("good", ("--version",))]
    submit_jobs(jobs, tmp_path, Resources())
    submit_jobs(jobs[2:], tmp_path, Resources())  # while it is in the queue, it is not submitted again
    ids = {path.name: path.read_text() for path in (tmp_path / "jobs").glob("*.id")}
    assert len(set(ids.values())) == 3
    ended = {"done", "failed", "lost"}
    wait_until(lambda: all(one.state in ended for one in slurm_states(tmp_path).values()))
    states = slurm_states(tmp_path)
    assert {name: one.state for name, one in states.items()} == {"bad": "failed", "after": "lost", "good": "done"}
    assert "no-such-command" in states["bad"].log.read_text()


@pytest.mark.slow
def test_submit_runs_any_command_and_takes_its_exit_code(slurm: None, tmp_path: Path) -> None:
    good = command("submit", "slurm", "--", "config", "list", cwd=tmp_path)
    output, _ = good.communicate(timeout=300)
    assert good.returncode == exit_codes.SUCCESS, output
    (log,) = (tmp_path / "jobs").glob("config-*.log")
    assert "demo" in log.read_text()
    bad = command("submit", "slurm", "--", "extract", "nothing.pt", "--out", "x", cwd=tmp_path)
    output, _ = bad.communicate(timeout=300)
    assert bad.returncode == exit_codes.FAILED and "failed (exit code 2" in output
