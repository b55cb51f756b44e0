"""Several commands work on one plan: each stage is run once, by one of them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.executor import longest_chain_first, select_stages
from covid_cmsf.cotrain.run import build_graphs, join_plan, load_plan, run_plan
from covid_cmsf.cotrain.status import plan_status
from covid_cmsf.locks import lock_file
from tests.cotrain.test_plans import numbers

ROOT = Path(__file__).parent.parent.parent


def test_an_id_selects_one_seed_and_a_name_all(plan: Path) -> None:
    graphs = build_graphs(load_plan(plan, ["seeds=[0,1]"]), plan.parent / "out", plan_dir=plan.parent)
    stages = [stage for graph in graphs for stage in graph]
    assert select_stages(stages, only="seed-1/infonce-rgb", start=None) == {"seed-1/infonce-rgb"}
    assert select_stages(stages, only="infonce-rgb", start=None) == {"seed-0/infonce-rgb", "seed-1/infonce-rgb"}
    assert select_stages(stages, only=None, start="cmsf-flow-1") == {"seed-0/cmsf-flow-1", "seed-1/cmsf-flow-1"}
    with pytest.raises(ValueError, match=r"no stage 'seed-2/infonce-rgb'; choose from infonce-rgb, infonce-flow, "):
        select_stages(stages, only="seed-2/infonce-rgb", start=None)
    order = [stage.id for stage in longest_chain_first(stages)]
    assert order[0] == "seed-0/infonce-rgb" and order.index("seed-1/infonce-rgb") == 4  # seed 0 first


def test_what_a_killed_command_left_is_removed_by_the_next_that_is_alone(plan: Path) -> None:
    loaded, out = load_plan(plan, ["seeds=[0,1]"]), plan.parent / "out"
    left = [out / ".0.tmp", out / "seed-0" / ".1.tmp", out / "seed-1" / ".2.tmp"]
    for folder in left[1:]:  # of stages that were being copied
        folder.mkdir(parents=True)
    left[0].touch()
    with join_plan(loaded, out):
        assert not any(path.exists() for path in left)
        (out / ".3.tmp").touch()
        with join_plan(loaded, out):
            assert (out / ".3.tmp").exists(), "that of another command, which is at work"


@pytest.mark.slow
def test_two_commands_share_the_stages_of_a_plan(plan: Path) -> None:
    _, alone = run_plan(load_plan(plan, ["seeds=[0,1]"]), plan.parent / "alone", plan_dir=plan.parent)
    out = plan.parent / "out"
    command = [sys.executable, "-m", "covid_cmsf", "cotrain", str(plan), "--seeds=0,1", f"--out={out}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) for _ in range(2)]
    logs = [process.communicate(timeout=600)[1] for process in both]
    assert [process.returncode for process in both] == [exit_codes.SUCCESS] * 2, logs
    assert numbers(json.loads((out / "table.json").read_text())) == numbers(alone)
    starts = {path.parent: path.read_text().count("\n") for path in out.glob("seed-*/*/environment.jsonl")}
    assert len(starts) == 8 and set(starts.values()) == {1}
    assert all("started" in log for log in logs)  # both did something
    assert {one.state for one in plan_status(out)} == {"done"}
    assert not list(out.rglob(".*lock"))


@pytest.mark.slow
def test_the_status_tells_running_failed_and_waiting_stages_apart(plan: Path) -> None:
    out = plan.parent / "out"
    run_plan(load_plan(plan, ["cmsf.optimizer.lr=1e38", "cmsf.schedule.epochs=2"]), out, plan_dir=plan.parent)
    with lock_file(out / ".cmsf-flow-1.lock"):
        states = {one.id: one for one in plan_status(out)}
    expected = {"infonce-rgb": "done", "infonce-flow": "done", "cmsf-rgb-1": "failed", "cmsf-flow-1": "running"}
    assert {name: one.state for name, one in states.items()} == expected
    assert "R@1" in states["infonce-rgb"].detail and "the loss of step" in states["cmsf-rgb-1"].detail
    assert {one.id: one.state for one in plan_status(out)}["cmsf-flow-1"] == "waiting"
    with pytest.raises(ValueError, match="is no folder of a plan"):
        plan_status(plan.parent)
