"""Plans through a real Ray cluster of two nodes on one machine, one of which is killed in the middle."""

import importlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.run import load_plan, run_plan
from covid_cmsf.engines.jobs import Job, Resources
from covid_cmsf.engines.ray import run_on_ray
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.signals import StopRequest
from tests.cotrain.test_plans import numbers
from tests.engines.test_slurm import command, wait_until

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("options", "resources", "message"),
    [
        ({"detach": True}, Resources(), "--detach needs --engine slurm"),
        ({}, Resources(sbatch=("--time=1",)), "--sbatch needs --engine slurm"),
    ],
)
def test_what_only_slurm_can_do_is_refused(
    options: dict[str, Any], resources: Resources, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        run_on_ray([Job("a", ())], tmp_path, resources, stop=StopRequest(), **options)


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A cluster of two nodes with one core each; yields ray's own nodes."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install -e .[ray]")
    cluster_utils: Any = importlib.import_module("ray.cluster_utils")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_worker_niceness", "0")  # Ray's 15 lets its jobs starve beside other tests
    memory = {"object_store_memory": 100_000_000, "include_dashboard": False}
    cluster = cluster_utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **memory})
    try:
        nodes = [cluster.add_node(num_cpus=1, object_store_memory=100_000_000) for _ in range(2)]
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield [cluster, *nodes]
    finally:
        cluster.shutdown()


@pytest.mark.slow
def test_a_plan_through_ray_survives_the_death_of_a_node(two_nodes: list[Any], plan: Path) -> None:
    longer = "pretrain.schedule.epochs=4"
    _, alone = run_plan(load_plan(plan, [longer]), plan.parent / "alone", plan_dir=plan.parent)
    out = plan.parent / "out"
    whole = command("cotrain", str(plan), longer, f"--out={out}", "--engine=ray", cwd=plan.parent)
    metrics = out / "infonce-rgb" / "metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 2)
    cluster, *nodes = two_nodes
    (victim,) = (node for node in nodes if stage_process(node, "infonce-rgb"))
    cluster.remove_node(victim, allow_graceful=False)
    output, _ = whole.communicate(timeout=600)
    assert whole.returncode == exit_codes.SUCCESS, output
    assert numbers(json.loads((out / "table.json").read_text())) == numbers(alone)
    starts = (out / "infonce-rgb" / "environment.jsonl").read_text().splitlines()
    assert len(starts) == 2  # it was started once more, on the other node
    assert json.loads(starts[1])["from_step"] > 0  # the kernel's SIGTERM let it save
    for name in ("infonce-flow", "cmsf-rgb-1", "cmsf-flow-1"):
        assert len((out / name / "environment.jsonl").read_text().splitlines()) == 1  # nothing was done twice


@pytest.mark.slow
def test_a_stage_whose_machine_loses_power_goes_on_at_its_checkpoint(two_nodes: list[Any], plan: Path) -> None:
    longer, stage, out = "pretrain.schedule.epochs=10", "infonce-rgb", plan.parent / "out"
    whole = command("cotrain", str(plan), longer, f"--out={out}", "--engine=ray", f"--only={stage}", cwd=plan.parent)
    checkpoints = Checkpoints(out / stage / "checkpoints")
    wait_until(checkpoints.last.is_file)
    cluster, *nodes = two_nodes
    ((victim, process),) = ((node, pid) for node in nodes if (pid := stage_process(node, stage)))
    supervisor = ancestors(process)[0]
    os.kill(supervisor, signal.SIGSTOP)  # it must not see how the stage ends
    os.kill(process, signal.SIGKILL)  # nothing can be saved
    saved = checkpoints.entries()[-1].step
    cluster.remove_node(victim, allow_graceful=False)
    with suppress(ProcessLookupError):
        os.kill(supervisor, signal.SIGKILL)
    output, _ = whole.communicate(timeout=600)
    assert whole.returncode == exit_codes.SUCCESS, output
    starts = [json.loads(line) for line in (out / stage / "environment.jsonl").read_text().splitlines()]
    assert [one["from_step"] for one in starts] == [0, saved] and saved > 0
    steps = [json.loads(line)["step"] for line in (out / stage / "metrics.jsonl").read_text().splitlines()]
    assert steps == list(range(steps[0], steps[0] + 50))  # every step once: five an epoch


def stage_process(node: Any, stage: str) -> int | None:
    """Return the process that trains a stage, if it descends from this node's raylet."""
    raylet = next(iter(node.all_processes["raylet"])).process.pid
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"--only={stage}".encode() in path.read_bytes().split(b"\0") and raylet in ancestors(int(path.parts[2])):
                return int(path.parts[2])
    return None


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(pid)
    return found


@pytest.mark.slow
def test_a_stopped_command_stops_its_jobs_and_resumes(two_nodes: list[Any], plan: Path) -> None:
    longer = "pretrain.schedule.epochs=20"
    out = plan.parent / "out"
    args = ("cotrain", str(plan), longer, f"--out={out}", "--engine=ray", "--only=infonce-rgb")
    process = command(*args, cwd=plan.parent)
    metrics = out / "infonce-rgb" / "metrics.jsonl"
    wait_until(lambda: metrics.is_file() and metrics.read_text().count("\n") > 2)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == exit_codes.INTERRUPTED, output
    assert not (out / "infonce-rgb" / "stage.json").is_file()
    again = command(*args, cwd=plan.parent)
    output, _ = again.communicate(timeout=600)
    assert again.returncode == exit_codes.SUCCESS, output
    assert (out / "infonce-rgb" / "stage.json").is_file()
