"""A plan of RGB and sound, from generated videos to the table, features and an index."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.config import load_config
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.cotrain.run import load_plan, run_plan
from covid_cmsf.preflight import PreflightError
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.run import run_training
from tests.cotrain.conftest import CMSF, DEFAULTS, PRETRAIN
from tests.factories import build_once, make_sound_store, make_table_store
from tests.training.factories import differing, finish, make_config, stop_at


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_once(tmp_path_factory, "sound-store", build)


def build(root: Path) -> None:
    make_sound_store(root)


def write_plan(folder: Path, clips: Path, **changes: Any) -> Path:
    """One round of RGB and sound; sound has a 2D network."""
    defaults = {**DEFAULTS, "clips": str(clips), "encoder": "c21d_tiny"}
    defaults["views"] = {**defaults["views"], "length": 4, "stride": 3}
    values = {"defaults": defaults, "modality_defaults": {"audio": {"encoder": "r10_small"}}, "rounds": 1}
    values |= {"modalities": ["rgb", "audio"], "first": "rgb", "pretrain": PRETRAIN, "cmsf": CMSF}
    values |= {"baselines": ["random"], "evaluation": {"windows": 1}, **changes}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def test_a_dry_run_names_the_network_of_each_modality(tmp_path: Path) -> None:
    clips = make_table_store(tmp_path / "clips", modalities=("rgb", "audio"))
    done = CliRunner().invoke(app, ["cotrain", str(write_plan(tmp_path, clips)), "--dry-run"])
    assert done.exit_code == 0, done.output
    assert "cmsf-audio-1: CMSF 4/2 on audio  ← guided by cmsf-rgb-1" in done.output
    assert "random-audio" in done.output


def test_a_video_network_on_sound_and_clips_without_sound_are_refused_before_the_start(tmp_path: Path) -> None:
    clips = make_table_store(tmp_path / "clips", modalities=("rgb", "audio"))
    plan = write_plan(tmp_path, clips, modality_defaults={"audio": {"encoder": "s3d"}}, baselines=[])
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--dry-run"])
    assert isinstance(done.exception, PreflightError) and "a clip of 1 frame" in str(done.exception)
    plan = write_plan(tmp_path, make_table_store(tmp_path / "silent"))
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--dry-run"])
    assert isinstance(done.exception, PreflightError) and "--modalities rgb,flow,audio" in str(done.exception)


def test_the_settings_of_a_modality_are_checked_like_all_others() -> None:
    with pytest.raises(ValueError, match="unknown modality 'sound'"):
        PlanConfig(rounds=1, pretrain=PRETRAIN, cmsf=CMSF, modality_defaults={"sound": {"encoder": "r10_small"}})


@pytest.mark.slow
def test_a_run_on_sound_that_was_stopped_ends_bit_equal(
    sounds: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    views = {"length": 4, "stride": 3, "size": 16}
    chosen = make_config(sounds / "clips", modality="audio", encoder="r10_small", views=views)
    assert run_training(chosen, tmp_path / "whole") == "finished"
    stop_at(monkeypatch, 2, 5)
    assert finish(chosen, tmp_path / "resumed") == 2
    assert differing(tmp_path / "whole", tmp_path / "resumed") == []


@pytest.mark.slow
def test_rgb_and_sound_guide_each_other_and_videos_are_found_by_their_sound(sounds: Path, tmp_path: Path) -> None:
    plan, out = write_plan(tmp_path, sounds / "clips", baselines=[]), tmp_path / "out"
    code, rows = run_plan(load_plan(plan, []), out, plan_dir=tmp_path, only="infonce-audio")
    assert code == 0 and [row["stage"] for row in rows if row["done"]] == ["infonce-audio"]
    first = (out / "infonce-audio" / "checkpoints" / "last.pt").stat().st_mtime_ns
    code, rows = run_plan(load_plan(plan, []), out, plan_dir=tmp_path)
    names = {"infonce-rgb", "infonce-audio", "cmsf-rgb-1", "cmsf-audio-1"}
    assert code == 0 and {row["stage"] for row in rows} == names
    assert all(0 <= row["r1"] <= 100 and 0 <= row["linear"] <= 100 for row in rows)
    assert (out / "infonce-audio" / "checkpoints" / "last.pt").stat().st_mtime_ns == first, "trained once"
    trained = load_config(TrainConfig, out / "cmsf-audio-1" / "config.yaml", [])
    assert trained.encoder == "r10_small" and [guide.modality for guide in trained.guides] == ["rgb"]
    run = CliRunner().invoke
    report = run(app, ["report", str(out), "-o", str(tmp_path / "report")])
    assert report.exit_code == 0 and (tmp_path / "report" / "index.html").is_file(), report.output
    weights, clips = str(out / "cmsf-audio-1"), str(sounds / "clips")
    done = run(app, ["extract", weights, clips, "-o", str(tmp_path / "audio.features")])
    assert done.exit_code == 0, done.output
    done = run(app, ["search", "index", clips, "--weights", weights, "-o", str(tmp_path / "index")])
    assert done.exit_code == 0, done.output
    video = next((sounds / "videos").rglob("*.avi"))
    done = run(app, ["search", "query", str(tmp_path / "index"), str(video)])
    assert done.exit_code == 0 and video.stem in done.output, done.output
    done = run(app, ["evaluate", "finetune", weights, clips, "-o", str(tmp_path / "tuned")])
    assert isinstance(done.exception, ValueError) and "not on sound" in str(done.exception)
