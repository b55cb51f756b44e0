"""A plan of RGB, flow and motion vectors, from video files to the table."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.config import load_config
from covid_cmsf.cotrain.run import load_plan, run_plan
from covid_cmsf.preflight import PreflightError
from covid_cmsf.training.config import TrainConfig
from tests.cotrain.conftest import CMSF, DEFAULTS, PRETRAIN
from tests.factories import make_table_store, make_ucf
from tests.preprocess.commands import preprocess


def write_plan(folder: Path, clips: Path) -> Path:
    """One round of three modalities; candidates of all guides."""
    cmsf = {**CMSF, "method": {**CMSF["method"], "combine": "intersection"}}
    values = {"rounds": 1, "modalities": ["rgb", "flow", "motion"], "pretrain": PRETRAIN, "cmsf": cmsf}
    path = folder / "plan.yaml"
    defaults = {"clips": str(clips), **DEFAULTS}
    path.write_text(yaml.safe_dump({"defaults": defaults, **values, "evaluation": {"windows": 1}}), encoding="utf-8")
    return path


def test_a_dry_run_shows_all_guides(tmp_path: Path) -> None:
    clips = make_table_store(tmp_path / "clips", modalities=("rgb", "flow", "motion"))
    done = CliRunner().invoke(app, ["cotrain", str(write_plan(tmp_path, clips)), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "cmsf-flow-1: CMSF 4/2 on flow  ← guided by infonce-rgb, infonce-motion" in done.output
    assert "cmsf-motion-1: CMSF 4/2 on motion  ← guided by cmsf-rgb-1, cmsf-flow-1" in done.output


def test_a_plan_on_clips_without_motion_names_the_command(tmp_path: Path) -> None:
    plan = write_plan(tmp_path, make_table_store(tmp_path / "clips"))
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--dry-run"])
    assert isinstance(done.exception, PreflightError) and "--modalities rgb,flow,motion" in str(done.exception)


@pytest.mark.slow
def test_three_modalities_train_and_guide_each_other(tmp_path: Path) -> None:
    make_ucf(tmp_path / "videos", classes=2, groups=10, num_frames=12)
    done = preprocess(tmp_path / "videos", tmp_path / "clips", "--modalities", "rgb,flow,motion")
    assert done.returncode == 0, done.stderr
    plan = write_plan(tmp_path, tmp_path / "clips")
    code, rows = run_plan(load_plan(plan, []), tmp_path / "out", plan_dir=tmp_path)
    names = [f"{method}-{modality}" for method in ("infonce", "cmsf") for modality in ("rgb", "flow", "motion")]
    assert code == 0 and {row["stage"] for row in rows} == {
        f"{name}-1" if name.startswith("cmsf") else name for name in names
    }
    assert all(0 <= row["r1"] <= 100 for row in rows)
    trained = load_config(TrainConfig, tmp_path / "out" / "cmsf-motion-1" / "config.yaml", [])
    assert trained.modality == "motion" and [guide.modality for guide in trained.guides] == ["rgb", "flow"]
