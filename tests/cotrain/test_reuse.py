"""Stages of one plan taken over by another: not trained again, whole or not at all, and only where nothing differs."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from covid_cmsf import exit_codes
from covid_cmsf.cotrain import reuse as reuse_module
from covid_cmsf.cotrain.reuse import finished_stages, reuse_stages
from covid_cmsf.cotrain.run import build_graphs, load_plan, run_plan
from covid_cmsf.locks import lock_file

pytestmark = pytest.mark.slow


def run(plan: Path, out: Path, *overrides: str, **options: Any) -> tuple[int, list[dict[str, Any]]]:
    return run_plan(load_plan(plan, list(overrides)), out, plan_dir=plan.parent, **options)


@pytest.fixture
def first(plan: Path) -> Path:
    """A plan whose InfoNCE network of RGB is finished."""
    out = plan.parent / "first"
    assert run(plan, out, only="infonce-rgb")[0] == exit_codes.SUCCESS
    return out


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """The folder of the plan that takes stages over."""
    return tmp_path / "second"


def checkpoint(out: Path) -> Path:
    return (out / "infonce-rgb" / "checkpoints" / "last.pt").resolve()


def test_a_stage_with_the_same_settings_is_not_trained_again(plan: Path, first: Path, second: Path) -> None:
    log = (first / "infonce-rgb" / "log.txt").read_bytes()
    code, rows = run(plan, second, "cmsf.method.k=1", only="infonce-rgb", reuse=[first])
    assert code == exit_codes.SUCCESS and rows[0]["done"]
    assert (second / "infonce-rgb" / "log.txt").read_bytes() == log
    assert checkpoint(second).is_relative_to(second.resolve())
    assert checkpoint(second).read_bytes() == checkpoint(first).read_bytes()


def test_another_evaluation_is_made_without_training_and_leaves_the_other_plan_alone(
    plan: Path, first: Path, second: Path
) -> None:
    before = {path: path.read_bytes() for path in first.rglob("*") if path.is_file()}
    assert run(plan, second, "evaluation.windows=2", only="infonce-rgb", reuse=[first])[0] == exit_codes.SUCCESS
    assert checkpoint(second).read_bytes() == checkpoint(first).read_bytes()
    assert json.loads((second / "infonce-rgb" / "stage.json").read_text())["evaluation"]["windows"] == 2
    assert {path: path.read_bytes() for path in first.rglob("*") if path.is_file()} == before


def test_a_stage_that_another_process_has_begun_is_left_to_it(plan: Path, first: Path, second: Path) -> None:
    """It holds the stage's lock before its folder is there."""
    (stages,) = build_graphs(load_plan(plan, []), second, plan_dir=plan.parent)
    finished = finished_stages([first])
    stage = next(one for one in stages if one.key in finished)
    second.mkdir()
    with lock_file(stage.lock):
        assert reuse_stages(stages, finished) == [] and not stage.folder.exists()
    assert reuse_stages(stages, finished) == ["infonce-rgb"] and stage.checkpoint.is_file()
    assert {path.name for path in second.iterdir()} == {"infonce-rgb"}


def test_other_settings_are_trained(plan: Path, first: Path, second: Path) -> None:
    assert run(plan, second, "defaults.seed=7", only="infonce-rgb", reuse=[first])[0] == exit_codes.SUCCESS
    assert checkpoint(second).read_bytes() != checkpoint(first).read_bytes()


def test_an_interrupted_copy_leaves_nothing_that_looks_finished(
    plan: Path, first: Path, second: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(source: str, destination: str) -> None:
        if source.endswith("stage.json"):
            raise OSError(28, "No space left on device")
        shutil.copy2(source, destination)

    monkeypatch.setattr(reuse_module, "_link_or_copy", fail)
    with pytest.raises((OSError, shutil.Error), match="No space left"):
        run(plan, second, only="infonce-rgb", reuse=[first])
    assert not [path for path in second.iterdir() if path.is_dir()]


def test_damaged_and_unfinished_stages_are_left_out(first: Path, tmp_path: Path) -> None:
    (key,) = finished_stages([first])
    copy = tmp_path / "copy"
    shutil.copytree(first, copy, symlinks=True)
    assert finished_stages([copy, first])[key].is_relative_to(copy)
    (copy / "infonce-rgb" / "stage.json").write_text("{")
    assert finished_stages([copy, first])[key].is_relative_to(first)
    (copy / "infonce-rgb" / "stage.json").unlink()
    assert not finished_stages([copy])
    with pytest.raises(ValueError, match="is no folder; --reuse takes"):
        finished_stages([tmp_path / "missing"])
