"""Executed plans: nothing is done twice, changed stages are redone, and a kill changes no number."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf import exit_codes
from covid_cmsf.cli.app import app
from covid_cmsf.cotrain.run import load_plan, run_plan
from covid_cmsf.locks import join_lock
from covid_cmsf.training.run_dir import lock_dir
from tests.cotrain.conftest import DEFAULTS, PRETRAIN
from tests.models.test_image_networks import TINY, tiny_weights
from tools.disturbances.compare import differing, snapshot

pytestmark = pytest.mark.slow
NUMBERS = ("index", "stage", "model", "modality", "init", "constraint", "epochs", "r1", "linear", "effective_rank")


def run(plan: Path, *overrides: str, out: Path | None = None, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    return run_plan(load_plan(plan, list(overrides)), out or plan.parent / "out", plan_dir=plan.parent, **options)


def numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in NUMBERS} for row in rows]


def finished_at(out: Path) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob("*/stage.json")}


def test_a_plan_is_done_once_and_redone_where_it_changed(plan: Path) -> None:
    out = plan.parent / "out"
    code, rows = run(plan)
    assert code == exit_codes.SUCCESS and [row["stage"] for row in rows] == [
        "infonce-rgb",
        "infonce-flow",
        "cmsf-rgb-1",
        "cmsf-flow-1",
    ]
    assert all(0 <= row["r1"] <= 100 and 0 <= row["linear"] <= 100 and row["seconds"] > 0 for row in rows)
    assert (rows[2]["init"], rows[2]["constraint"], rows[2]["epochs"]) == ("1", "2", "+1")
    assert json.loads((out / "table.json").read_text()) == rows
    assert "| Index | Stage | Model |" in (out / "table.md").read_text()
    assert (out / "table.csv").read_text().startswith("index,stage,model,modality,init,constraint,epochs,r1,linear")
    first = finished_at(out)

    assert run(plan)[1] == rows and finished_at(out) == first

    trained = {path: path.stat().st_mtime_ns for path in out.glob("*/checkpoints/step-*.pt")}
    assert run(plan, "evaluation.windows=2", only="infonce-rgb")[0] == exit_codes.SUCCESS
    assert trained == {path: path.stat().st_mtime_ns for path in out.glob("*/checkpoints/step-*.pt")}
    assert finished_at(out)["infonce-rgb"] != first["infonce-rgb"]
    assert run(plan)[1] == rows  # evaluated as before
    first = finished_at(out)

    code, _ = run(plan, "cmsf.method.k=1", only="cmsf-rgb-1")
    second = finished_at(out)
    assert {name for name in first if first[name] != second[name]} == {"cmsf-rgb-1"}
    code, _ = run(plan, "cmsf.method.k=1", start="cmsf-rgb-1")
    third = finished_at(out)
    assert code == exit_codes.SUCCESS
    assert {name for name in second if second[name] != third[name]} == {"cmsf-flow-1"}
    assert len(list((out / "replaced").iterdir())) == 2  # old results are kept


def test_parallel_stages_give_the_same_numbers(plan: Path) -> None:
    alone = run(plan, out=plan.parent / "a")[1]
    together = run(plan, out=plan.parent / "b", parallel=2)[1]
    assert numbers(alone) == numbers(together)


def test_stages_that_do_not_depend_on_a_failed_one_still_run(plan: Path) -> None:
    code, rows = run(plan, "cmsf.optimizer.lr=1e38", "controls=[continued]", "cmsf.schedule.epochs=2")
    by_name = {row["stage"]: row for row in rows}
    assert code == exit_codes.FAILED
    assert by_name["cmsf-rgb-1"]["r1"] is None and by_name["cmsf-flow-1"]["r1"] is None
    assert by_name["continued-flow"]["r1"] is not None
    assert "stage cmsf-rgb-1: the loss of step" in (plan.parent / "out" / "cmsf-rgb-1" / "log.txt").read_text()


def test_external_weights_and_baselines_are_stages_too(clips: Path, frame_weights: Path, tmp_path: Path) -> None:
    stages = [
        {"name": "picture", "weights": str(frame_weights), "modality": "frame", "model": "2D, center frame"},
        {"name": "start", **{"overrides": PRETRAIN}, "modality": "flow"},
        {
            "name": "guided",
            "modality": "flow",
            "init": "start",
            "guide": "picture",
            "guide_overrides": {"layer": "encoder"},
            "method": {"name": "cmsf", "num_candidates": 4, "k": 2, "bank_size": 16},
            "published": {"r1": 60.4, "linear": 73.2},
        },
    ]
    values = {"defaults": {"clips": str(clips), **DEFAULTS, "schedule": {"epochs": 1}}, "stages": stages}
    values |= {"baselines": ["chance", "color", "flow"], "evaluation": {"windows": 1}, "seeds": [3, 4]}
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump(values))
    code, rows = run(plan)
    assert code == exit_codes.SUCCESS and [row["stage"] for row in rows] == [
        "chance",
        "color-histogram",
        "flow-histogram",
        "picture",
        "start",
        "guided",
    ]
    assert all(row["num_seeds"] == 2 and len(row["r1_seeds"]) == 2 for row in rows)
    assert rows[1]["r1_sd"] == 0 and rows[5]["r1"] == pytest.approx(np.mean(rows[5]["r1_seeds"]))
    assert rows[5]["constraint"] == "3" and rows[5]["published_r1"] == 60.4
    assert rows[0]["r1"] == pytest.approx(100 / num_classes_in(clips)) and rows[0]["modality"] is None
    assert "R@1 paper" in (tmp_path / "out" / "table.md").read_text()
    assert (tmp_path / "out" / "seed-3" / "table.json").is_file()


def num_classes_in(clips: Path) -> int:
    return sum(folder.is_dir() for folder in (clips / "rgb").iterdir())


def command(plan: Path, out: Path) -> list[str]:
    return [sys.executable, "-m", "covid_cmsf", "cotrain", str(plan), "--out", str(out)]


def contents(folder: Path) -> dict[Path, int]:
    """Size of every file; one that is removed meanwhile is left out."""
    sizes = {}
    for parent, _, names in os.walk(folder):
        for path in (Path(parent) / name for name in names):
            with suppress(FileNotFoundError):
                sizes[path] = path.stat().st_size
    return sizes


def test_kills_at_random_moments_change_no_file(plan: Path) -> None:
    rng, out = np.random.default_rng(0), plan.parent / "out"
    whole = run(plan, out=out)[1]
    out.rename(plan.parent / "whole")  # some files have the folder's name inside
    codes = []
    for _ in range(10):
        process = subprocess.Popen(command(plan, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(int(rng.integers(1, 12))):  # changes in the folder, not seconds: the same on every machine
            before = contents(out)
            while process.poll() is None and contents(out) == before:
                time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        codes.append(process.wait())
    assert -signal.SIGKILL in codes
    done = subprocess.run(command(plan, out), capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert numbers(json.loads((out / "table.json").read_text())) == numbers(whole)
    assert differing(snapshot(plan.parent / "whole", "run"), snapshot(out, "run")) == []


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A temporary folder with a short path: those of sockets have at most 107 characters."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.parametrize("options", [[], ["--processes", "2"]], ids=["one process", "torchrun"])
def test_a_signal_to_the_process_group_stops_a_plan(plan: Path, short_folder: Path, options: list[str]) -> None:
    out, temporary = plan.parent / "out", short_folder
    plan.write_text(plan.read_text().replace("epochs: 1", "epochs: 500"))
    process = subprocess.Popen(
        [*command(plan, out), *options],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    metrics = out / "infonce-rgb" / "metrics.jsonl"
    while not (metrics.is_file() and metrics.read_text()):  # then it trains
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=900)
    assert process.returncode == exit_codes.INTERRUPTED
    assert list(out.glob("infonce-rgb/checkpoints/last.pt")) and not list(out.glob("*/stage.json"))
    with lock_dir(out / "infonce-rgb"):  # no process is left that trains there
        pass
    assert list(temporary.glob("pymp-*")) == []  # folders of multiprocessing


def test_two_different_plans_in_one_folder_are_refused(plan: Path) -> None:
    out = plan.parent / "out"
    out.mkdir()
    (out / "plan.json").write_text("{}")
    with (
        join_lock(out / ".lock", first=lambda: None, check=lambda: None),
        pytest.raises(ValueError, match="another process is running a plan with other settings"),
    ):
        run(plan)


def test_a_dry_run_prints_the_plan_and_writes_nothing(plan: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(plan.parent)
    before = sorted(plan.parent.iterdir())
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "cmsf-flow-1: CMSF 4/2 on flow  ← guided by cmsf-rgb-1" in done.output and "to do" in done.output
    assert sorted(plan.parent.iterdir()) == before


def test_a_plan_without_labels_runs_to_its_end(plan: Path, clips: Path, tmp_path: Path) -> None:
    """Audit 1.1: the first stage was trained, then everything failed for want of labels."""
    store = tmp_path / "unlabeled"
    shutil.copytree(clips, store)
    hide_labels(store)
    values = yaml.safe_load(plan.read_text())
    values["defaults"]["clips"] = str(store)
    plan.write_text(yaml.safe_dump({**values, "controls": ["oracle"], "baselines": ["chance", "color"]}))
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--out", str(tmp_path / "out")], env={"COLUMNS": "140"})
    assert done.exit_code == exit_codes.SUCCESS, done.output
    rows = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [row["stage"] for row in rows] == [
        "color-histogram",
        "infonce-rgb",
        "infonce-flow",
        "cmsf-rgb-1",
        "cmsf-flow-1",
    ]
    assert all(row["done"] and row["effective_rank"] > 1 and row["r1"] is None for row in rows)
    assert rows[1]["agreement"] is None and 0 <= rows[3]["agreement"] <= 100  # with the guide's neighbors
    assert "Rank" in done.output and "Agreement" in done.output
    assert "Window" not in done.output  # videos this short have no two windows without common frames
    assert "R@1" not in done.output and "Linear" not in done.output
    assert "R@1" not in (tmp_path / "out" / "table.md").read_text()


def hide_labels(store: Path) -> None:
    """As if nobody knew what the videos show, and with a single subset, as the layout `flat` has it."""
    with (store / "manifest.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (store / "manifest.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "label": -1, "class_name": ""} for row in rows)
    for split in (store / "splits").glob("*.csv"):
        split.write_text(split.read_text().replace("test", "train"))


def test_a_failed_plan_prints_no_table_as_if_it_were_a_result(plan: Path) -> None:
    """Newcomer 10: only stages that are done are rows; then how many failed, and why."""
    arguments = ["cotrain", str(plan), "--out", str(plan.parent / "out"), "pretrain.optimizer.lr=1e38"]
    done = CliRunner().invoke(app, [*arguments, "pretrain.schedule.epochs=2"], env={"COLUMNS": "140"})
    assert done.exit_code == exit_codes.FAILED
    assert "R@1" not in done.output and "2 of 4 stages failed:\n  infonce-rgb: the loss of step" in done.output
    assert "2 of 4 stages have no result yet: cmsf-rgb-1, cmsf-flow-1" in done.output


def test_an_image_network_guides_beside_the_rounds_and_other_weights_redo_its_stages(
    plan: Path, tmp_path: Path
) -> None:
    pytest.importorskip("timm", reason="the extra timm is not installed")
    weights = tmp_path / "tiny.safetensors"
    tiny_weights(weights)
    changes = ["rounds=0", f"guides=['timm:{TINY}?weights={weights}']"]
    code, rows = run(plan, *changes)
    stages = ["infonce-rgb", "infonce-flow", TINY, f"cmsf-rgb-{TINY}", f"cmsf-flow-{TINY}"]
    assert code == exit_codes.SUCCESS and [row["stage"] for row in rows] == stages
    assert [row["constraint"] for row in rows[3:]] == ["3", "3"] and rows[2]["modality"] == "frame"
    assert all(0 <= row["r1"] <= 100 for row in rows)
    first = finished_at(plan.parent / "out")
    tiny_weights(weights, seed=4)
    run(plan, *changes)
    now = finished_at(plan.parent / "out")
    assert [name for name in stages if now[name] != first[name]] == stages[2:]
