"""Continuing a run: with the same settings, or not at all; never two at a time, never under another guide."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner, Result

from covid_cmsf.cli.app import app
from covid_cmsf.clips import open_clips
from covid_cmsf.clips.records import clip_path, read_manifest, write_manifest
from covid_cmsf.training.run import run_training
from covid_cmsf.training.run_dir import lock_dir
from tests.training.command import Command, write_config_file
from tests.training.factories import TIMES, differing, make_config, stop_at

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.fixture
def stopped(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that was stopped after three of ten steps."""
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        assert run_training(make_config(clips), tmp_path / "run") == "stopped"
    return tmp_path / "run"


def train(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["train", *map(str, args)])


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_changed_settings_are_refused_with_a_readable_difference(stopped: Path, clips: Path) -> None:
    before = contents(stopped)
    changed = make_config(clips, optimizer={"lr": 0.5}, method={"name": "infonce", "bank_size": 16, "temperature": 0.2})
    with pytest.raises(ValueError, match="holds a run with another configuration") as caught:
        run_training(changed, stopped)
    lines = str(caught.value).splitlines()
    assert "  method.temperature: 0.07 -> 0.2" in lines and "  optimizer.lr: 0.001 -> 0.5" in lines
    assert len(lines) == 4 and "--accept-changes" in lines[-1]
    assert contents(stopped) == before


def test_a_changed_config_in_the_folder_itself_is_refused_too(stopped: Path) -> None:
    values = yaml.safe_load((stopped / "config.yaml").read_text())
    values["optimizer"]["weight_decay"] = 0.25
    (stopped / "config.yaml").write_text(yaml.safe_dump(values))
    result = train(stopped)
    assert isinstance(result.exception, ValueError) and "weight_decay: 1e-05 -> 0.25" in str(result.exception)


def test_what_alters_speed_alone_may_change(stopped: Path, clips: Path, tmp_path: Path) -> None:
    run_training(make_config(clips), tmp_path / "whole")
    changed = make_config(clips, runtime={"keep": 7, "save_minutes": 3.0, "cache_gb": 0.1})
    assert run_training(changed, stopped) == "finished"
    assert differing(tmp_path / "whole", stopped) == []


def test_accepted_changes_are_really_used(stopped: Path, clips: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "other", symlinks=True)
    changed = make_config(clips, optimizer={"lr": 1e-12, "weight_decay": 0.0})
    before = torch.load(stopped / "checkpoints" / "last.pt", weights_only=True)["state"]
    assert run_training(changed, stopped, accept_changes=True) == "finished"
    values = torch.load(stopped / "checkpoints" / "last.pt", weights_only=True)
    weight = "online.encoder.trunk.0.weight"
    assert torch.allclose(values["state"][weight], before[weight], atol=1e-9)
    assert values["optimizer"]["param_groups"][0]["weight_decay"] == 0
    assert yaml.safe_load((stopped / "config.yaml").read_text())["optimizer"]["lr"] == 1e-12
    assert run_training(make_config(clips), tmp_path / "other") == "finished"
    after = torch.load(tmp_path / "other" / "checkpoints" / "last.pt", weights_only=True)["state"]
    assert not torch.allclose(after[weight], before[weight], atol=1e-6)


def test_changes_that_no_checkpoint_fits_are_an_error(stopped: Path, clips: Path) -> None:
    before = contents(stopped)
    for method in ({"name": "infonce", "bank_size": 32}, {"name": "xent"}, {"name": "msf", "bank_size": 16}):
        with pytest.raises(ValueError, match="does not fit"):
            run_training(make_config(clips, method=method), stopped, accept_changes=True)
    assert contents(stopped).keys() == before.keys()
    assert contents(stopped)["config.yaml"] == before["config.yaml"]


def test_the_folder_of_a_run_is_enough_to_continue_it(stopped: Path, clips: Path, tmp_path: Path) -> None:
    run_training(make_config(clips), tmp_path / "whole")
    assert train(stopped).exit_code == 0
    assert differing(tmp_path / "whole", stopped) == []
    result = train(tmp_path)
    assert isinstance(result.exception, FileNotFoundError) and "is not the folder of a run" in str(result.exception)


@pytest.mark.slow
def test_a_finished_run_says_so_and_does_nothing(clips: Path, tmp_path: Path) -> None:
    run_training(make_config(clips, schedule={"epochs": 1}), tmp_path / "run")
    before = contents(tmp_path / "run")
    again = Command("train", tmp_path / "run", log=tmp_path / "log")
    assert again.end() == 0 and "finished" in again.said()
    after = contents(tmp_path / "run")
    del after["log.txt"]
    assert {name for name in after if after[name] != before.get(name)} <= {"environment.jsonl"}


def test_a_second_trainer_in_the_same_folder_is_refused(stopped: Path, clips: Path) -> None:
    with lock_dir(stopped), pytest.raises(ValueError, match="another process is writing to"):
        run_training(make_config(clips), stopped)
    assert run_training(make_config(clips), stopped) == "finished"


def test_a_second_command_is_refused_while_the_first_trains(clips: Path, tmp_path: Path) -> None:
    config = write_config_file(make_config(clips, schedule={"epochs": 500}), tmp_path / "run.yaml")
    first = Command("train", config, "--out", tmp_path / "run", log=tmp_path / "first")
    try:
        first.until((tmp_path / "run" / "metrics.jsonl").is_file)
        second = Command("train", config, "--out", tmp_path / "run", log=tmp_path / "second")
        assert second.end() == 2, second.said()
        assert "error: another process is writing to" in second.said()
        assert first.process.is_alive()
    finally:
        first.process.kill()
        first.process.join()


def test_other_weights_of_the_guide_are_refused(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "guide.pt"
    shutil.copy(flow_weights, weights)
    method: dict[str, Any] = {"name": "cmsf", "bank_size": 16, "k": 2}
    for cache in ("none", "views"):
        guides = [{"weights": str(weights), "modality": "flow", "cache": cache, "cached_views": 2}]
        chosen, folder = make_config(clips, method=method, guides=guides), tmp_path / cache
        with monkeypatch.context() as patch:
            stop_at(patch, 3)
            run_training(chosen, folder)
        values = torch.load(flow_weights, weights_only=True)
        values["state"]["online.encoder.trunk.1.running_mean"] += 1e-3
        torch.save(values, weights)
        with pytest.raises(ValueError, match="weights of a guide have changed since this run began"):
            run_training(chosen, folder)
        shutil.copy(flow_weights, weights)
        assert run_training(chosen, folder) == "finished"


def test_metrics_beyond_the_checkpoint_are_dropped_and_written_anew(stopped: Path, clips: Path, tmp_path: Path) -> None:
    with (stopped / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 99}\n{"step": 5, "loss": 9')  # a kill came before the next checkpoint
    run_training(make_config(clips), tmp_path / "whole")
    assert run_training(make_config(clips), stopped) == "finished"
    assert differing(tmp_path / "whole", stopped) == [] and "seconds" in TIMES


def test_other_clips_in_the_same_place_are_refused(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "clips"
    shutil.copytree(clips, store)
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        assert run_training(make_config(store), tmp_path / "run") == "stopped"
    split = store / "splits" / "1.csv"
    split.write_text("\n".join(line for line in split.read_text().splitlines() if "g14" not in line) + "\n")
    with pytest.raises(ValueError, match="the clips have changed since this run began"):
        run_training(make_config(store), tmp_path / "run")


def test_a_video_that_was_converted_anew_is_refused(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "clips"
    shutil.copytree(clips, store)
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        assert run_training(make_config(store), tmp_path / "run") == "stopped"
    records = {one.video_id: one for one in read_manifest(store / "manifest.csv")}
    used, other = (records[one.video_id] for one in open_clips(store).select("1", "train")[:2])
    # As long as before, other content.
    clip_path(store, "rgb", used.video_id).write_bytes(clip_path(store, "rgb", other.video_id).read_bytes())
    records[used.video_id] = replace(used, rgb_sha256=other.rgb_sha256, rgb_bytes=other.rgb_bytes)
    write_manifest(store / "manifest.csv", list(records.values()))
    with pytest.raises(ValueError, match="the clips have changed since this run began"):
        run_training(make_config(store), tmp_path / "run")
