"""Copies of a command are one array of Slurm, and so are the templates' jobs: counted, requeued, submitted again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.status import plan_status
from covid_cmsf.engines.jobs import Job, Resources, job_file
from covid_cmsf.engines.slurm import batch_script, read_queue, slurm_states, submit_jobs
from tests.engines.test_slurm import WARN, command, programs, start_again, wait_until
from tests.factories import make_ucf
from tests.preprocess.commands import QUICK, count_done
from tests.training.command import write_config_file
from tests.training.factories import make_config

ROOT = Path(__file__).parent.parent.parent
COPIES = [Job(f"work-{number}", ("doctor",), copy=number) for number in (1, 2, 3)]


def test_copies_are_tasks_of_one_array(tmp_path: Path) -> None:
    lines = batch_script(COPIES, tmp_path, Resources()).splitlines()
    log = tmp_path / "jobs" / "work-%a.log"
    assert {"#SBATCH --array=1-3", "#SBATCH --job-name=covid-cmsf:work", f"#SBATCH --output={log}"} < set(lines)
    assert lines[-1].endswith(f'{tmp_path} work-"$SLURM_ARRAY_TASK_ID"')
    assert "#SBATCH --array=1,3" in batch_script([COPIES[0], COPIES[2]], tmp_path, Resources())


def test_only_tasks_that_are_not_in_the_queue_are_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = f"echo x >> {tmp_path / 'calls'}; wc -l < {tmp_path / 'calls'}"
    programs(tmp_path, monkeypatch, sbatch=count, squeue="echo '1_2|RUNNING|None'")
    submit_jobs(COPIES, tmp_path, Resources())
    assert [job_file(tmp_path, job.name, "id").read_text() for job in COPIES] == ["1_1\n", "1_2\n", "1_3\n"]
    job_file(tmp_path, "work-3", "exit").write_text("1\n")
    states = {"work-1": "lost", "work-2": "running", "work-3": "failed"}
    assert {name: one.state for name, one in slurm_states(tmp_path).items()} == states
    assert {one.id: one.state for one in plan_status(tmp_path)} == states  # a folder without a plan has jobs, too
    submit_jobs([Job("alone", ("doctor",)), *COPIES], tmp_path, Resources())
    ids = {path.stem: path.read_text().strip() for path in (tmp_path / "jobs").glob("*.id")}
    assert ids == {"alone": "2", "work-1": "3_1", "work-2": "1_2", "work-3": "3_3"}


@pytest.mark.parametrize("option", [("--array=1-4",), ("-a", "1-4"), ("--array", "1-4")])
def test_an_array_of_ones_own_is_refused(option: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--copies N makes an array of N tasks"):
        submit_jobs([Job("a", ("doctor",))], tmp_path, Resources(sbatch=option))


@pytest.mark.slow
def test_copies_of_preprocess_share_the_videos(slurm: None, tmp_path: Path) -> None:
    make_ucf(tmp_path / "videos", num_frames=4)
    args = ["preprocess", "videos", "--out", "clips", "--layout", "ucf101", *QUICK]
    both = command(*args, "--engine=slurm", "--copies=2", cwd=tmp_path)
    output, _ = both.communicate(timeout=300)
    assert both.returncode == exit_codes.SUCCESS, output
    done = count_done(tmp_path / "clips")
    assert len(done) == 6 and set(done.values()) == {1}
    jobs = {name: one.job_id for name, one in slurm_states(tmp_path).items()}
    (script,) = (tmp_path / "jobs").glob("*.sh")
    assert sorted(jobs) == [f"{script.stem}-1", f"{script.stem}-2"]
    array = {job_id.partition("_")[0] for job_id in jobs.values()}
    assert len(array) == 1 and sorted(jobs.values()) == [f"{number}_{task}" for number in array for task in (1, 2)]
    assert all(job_file(tmp_path, name, "log").read_text() for name in jobs)


def sbatch(folder: Path, *args: str) -> str:
    """Submit a template, whose `python` is this one, from `folder`; return the job's number."""
    python = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    submitted = subprocess.run(
        ["sbatch", "--parsable", "--cpus-per-task=1", *args],
        cwd=folder,
        env={**os.environ, **python},
        capture_output=True,
        text=True,
        check=True,
    )
    return submitted.stdout.strip()


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in folder.glob("slurm-*.out"))


@pytest.mark.slow
def test_the_template_for_preprocess_is_an_array_that_shares_the_videos(slurm: None, tmp_path: Path) -> None:
    make_ucf(tmp_path / "videos", num_frames=4)
    quick = QUICK[: QUICK.index("--workers")]  # the template gives as many as there are cores
    template = str(ROOT / "tools" / "slurm" / "preprocess.sbatch")
    job_id = sbatch(tmp_path, "--array=1-2", template, "videos", "--out", "clips", "--layout", "ucf101", *quick)
    wait_until(lambda: not is_queued(job_id))
    done = count_done(tmp_path / "clips")
    assert len(done) == 6 and set(done.values()) == {1}, logs(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.out")) == [f"slurm-{job_id}_{task}.out" for task in (1, 2)]


@pytest.mark.slow
def test_the_template_for_train_saves_before_the_time_limit_and_goes_on(
    slurm: None, clips: Path, tmp_path: Path
) -> None:
    small = {"encoder": "c21d_tiny", "views": {"length": 2, "size": 16}, "schedule": {"epochs": 30}}
    config = write_config_file(make_config(clips, **small), tmp_path / "config.yaml")
    run = tmp_path / "run"
    job_id = sbatch(tmp_path, str(ROOT / "tools" / "slurm" / "train.sbatch"), str(config), "--out", str(run))
    metrics = run / "metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 2)
    subprocess.run([*WARN, job_id], check=True)
    start_again(job_id)
    wait_until(lambda: not is_queued(job_id))
    assert (run / "summary.json").is_file(), logs(tmp_path)
    starts = [json.loads(line)["from_step"] for line in (run / "environment.jsonl").read_text().splitlines()]
    assert len(starts) == 2 and starts[0] == 0 < starts[1]


def is_queued(job_id: str) -> bool:
    """Whether a job, or a task of an array, is in the queue."""
    return any(one.partition("_")[0] == job_id for one in read_queue())
