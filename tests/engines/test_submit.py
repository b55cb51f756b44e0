"""Commands with --engine: what is submitted, and what is refused."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covid_cmsf.cli import app, cluster
from covid_cmsf.cli.cluster import without_options

COMMANDS = [
    ["preprocess", "videos", "--out", "clips"],
    ["extract", "run", "clips", "--out", "x.features"],
    ["search", "index", "videos", "--weights", "run", "--out", "index"],
    ["evaluate", "transfer", "run", "--root", "data", "--out", "results"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command[:2]))
def test_a_command_with_an_engine_submits_its_own_line_without_the_options_of_the_cluster(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    def record(*args: Any, **options: Any) -> int:
        calls.append((*args, options))
        return 3

    monkeypatch.setattr(cluster, "run_jobs_and_show", record)
    options = ["--engine=slurm", "--copies", "2", "--job-gpus", "1", "--sbatch=--time=1:00 --mem=4G", "--detach"]
    line = [*command[:2], *options, *command[2:], "--job-folder", "jobs-here"]
    monkeypatch.setattr(sys, "argv", ["covid-cmsf", *line])
    ended = CliRunner().invoke(app.app, line)
    assert ended.exit_code == 3, ended.output
    ((engine, jobs, folder, resources, detached),) = calls
    assert engine == "slurm" and folder == Path("jobs-here") and detached == {"detach": True}
    assert [list(job.command) for job in jobs] == [command, command] and jobs[0].name != jobs[1].name
    assert (resources.cpus, resources.gpus, resources.sbatch) == (1, 1, ("--time=1:00", "--mem=4G"))


def test_options_of_a_cluster_without_one_are_refused() -> None:
    ended = CliRunner().invoke(app.app, [*COMMANDS[1], "--job-gpus", "1", "--detach"])
    assert isinstance(ended.exception, ValueError)
    assert str(ended.exception) == "--detach, --job-gpus: only with --engine slurm or --engine ray"
    ended = CliRunner().invoke(app.app, ["cotrain", "demo", "--job-gpus", "1", "--sbatch=--time=1"])
    assert str(ended.exception) == "--job-gpus, --sbatch: only with --engine slurm or --engine ray"


def test_stages_whose_results_are_not_to_be_seen_are_not_trained_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, plan: Path
) -> None:
    monkeypatch.setattr(cluster, "run_jobs_and_show", lambda *args, **options: 0)
    ended = CliRunner().invoke(app.app, ["cotrain", str(plan), "--out", str(tmp_path / "out"), "--engine", "slurm"])
    assert isinstance(ended.exception, RuntimeError), ended.output
    assert "the jobs ended well, but their results are not in" in str(ended.exception)
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("--engine slurm a --detach b --copies=3", "a b"),
        ("a --engine=ray -- --engine b", "a -- --engine b"),
    ],
)
def test_options_are_removed_with_their_values(line: str, kept: str) -> None:
    assert without_options(line.split(), ["--engine", "--copies", "--detach"]) == kept.split()
