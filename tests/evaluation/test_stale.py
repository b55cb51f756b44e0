"""Features of another checkpoint, or of videos that were replaced since, are never used as if they were current."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from covid_cmsf import exit_codes
from covid_cmsf.cli.app import app
from covid_cmsf.clips import open_clips
from covid_cmsf.clips.fingerprint import files_fingerprint
from covid_cmsf.evaluation.features.file import load_features, save_features
from covid_cmsf.evaluation.features.stale import load_current_features, stale_reason
from covid_cmsf.report.ranking import rank_stage
from covid_cmsf.report.runs import read_run
from tests.evaluation.factories import small_checkpoint, synthetic_features

pytestmark = pytest.mark.slow
V0 = Path(__file__).parents[1] / "data" / "v0"


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small store of its own, a checkpoint, and features of both."""
    shutil.copytree(V0 / "clips", tmp_path / "clips")
    small_checkpoint(tmp_path / "w.safetensors")
    result = extract(tmp_path)
    assert result.exit_code == 0, result.exception
    return tmp_path


def extract(folder: Path, *options: object) -> Result:
    command = ["extract", folder / "w.safetensors", folder / "clips", "--out", folder / "f", "--workers", 0]
    return run(*command, "--windows", 1, "--length", 8, *options)


def replace_video(folder: Path, modality: str = "rgb") -> None:
    """Another video in the place of the first."""
    first, second = sorted((folder / "clips" / modality / "Archery").iterdir())[:2]
    first.write_bytes(second.read_bytes())


def test_extract_refuses_features_of_replaced_videos(folder: Path) -> None:
    before = load_features(folder / "f").features
    assert extract(folder).exit_code == 0  # nothing has changed: only read
    replace_video(folder)
    result = extract(folder)
    assert isinstance(result.exception, FileExistsError)
    assert "its videos were replaced or changed since" in str(result.exception)
    assert extract(folder, "--force").exit_code == 0
    assert not torch.equal(load_features(folder / "f").features, before)


@pytest.mark.parametrize("change", ["replaced", "truncated", "removed", "checkpoint"])
def test_evaluation_refuses_stale_features_unless_allowed(folder: Path, change: str) -> None:
    assert load_current_features(folder / "f").provenance.clips_path == "clips"
    video = sorted((folder / "clips" / "rgb" / "Archery").iterdir())[0]
    if change == "replaced":
        replace_video(folder)
    elif change == "truncated":
        os.truncate(video, 100)
    elif change == "removed":
        video.unlink()
    else:
        small_checkpoint(folder / "w.safetensors", seed=1)
    named = "w.safetensors has changed since" if change == "checkpoint" else "clips were replaced or changed since"
    for command in (["retrieval"], ["knn", "--k", "1"], ["linear"], ["neighbors"], ["unlabeled"]):
        result = run("evaluate", command[0], folder / "f", *command[1:])
        assert isinstance(result.exception, ValueError) and "is stale: " in str(result.exception)
        assert named in str(result.exception)
    assert run("evaluate", "neighbors", folder / "f", "--allow-stale").exit_code == 0


def test_what_does_not_matter_does_not_make_features_stale(folder: Path) -> None:
    replace_video(folder, "flow")  # these are RGB features
    assert load_current_features(folder / "f")
    moved = folder / "moved"
    moved.mkdir()
    for name in ("clips", "w.safetensors", "f"):
        shutil.move(folder / name, moved / name)
    assert load_current_features(moved / "f")
    shutil.copytree(moved / "clips", folder / "copy")  # copy2 keeps times, as cp -a does
    clips = [open_clips(path) for path in (moved / "clips", folder / "copy")]
    fingerprints = [files_fingerprint(one, one.records, ("rgb",)) for one in clips]
    assert fingerprints[0] == fingerprints[1] != ""
    shutil.rmtree(moved / "clips")
    (moved / "w.safetensors").unlink()
    assert load_current_features(moved / "f")  # nothing left to compare with


def test_files_that_do_not_say_where_they_come_from_are_read(tmp_path: Path) -> None:
    save_features(tmp_path / "f", synthetic_features())
    assert stale_reason(tmp_path / "f", load_features(tmp_path / "f").provenance) is None
    assert load_current_features(V0 / "rgb.features")


def test_a_report_shows_no_neighbors_of_stale_features(tmp_path: Path) -> None:
    """A run whose features are those of an earlier checkpoint; the file is of format 1 and names no path."""
    shutil.copytree(V0 / "cmsf", tmp_path / "run", symlinks=True)
    shutil.copy(V0 / "rgb.features", tmp_path / "run" / "features.safetensors")
    assert rank_stage(read_run(tmp_path / "run", "run").stages[0], umap=False).r1 == pytest.approx(42.857, abs=0.01)
    last = tmp_path / "run" / "checkpoints" / "last.pt"
    values = torch.load(last, weights_only=True)
    for key, tensor in values["state"].items():
        if key.startswith("online.encoder") and tensor.is_floating_point():
            tensor.mul_(1.5)
    last.unlink()
    torch.save(values, last)
    with pytest.raises(ValueError, match=r"its features are stale: .*last\.pt has changed since"):
        rank_stage(read_run(tmp_path / "run", "run").stages[0], umap=False)


# The first extraction waits for a file to appear after its first shard.
WAITING = """
import sys, time
from pathlib import Path
from covid_cmsf.cli import main
from covid_cmsf.evaluation.features import extract as extract_module
from covid_cmsf.evaluation.features import shards as shards_module

def wait(self, number, shard, save=shards_module.ShardStore.save):
    save(self, number, shard)
    while number == 0 and not Path(sys.argv[-1] + ".go").exists():
        time.sleep(0.05)

extract_module.SHARD_SIZE, shards_module.ShardStore.save = 4, wait
main()
"""


def test_of_two_extractions_to_one_file_one_wins_and_the_other_says_one_line(folder: Path) -> None:
    out = folder / "both"
    args = ["extract", folder / "w.safetensors", folder / "clips", "--workers", "0", "--windows", "1", "--out", out]
    first = subprocess.Popen([sys.executable, "-c", WAITING, *map(str, args)])
    while not (folder / ".both.shards" / "000000.safetensors").exists() and first.poll() is None:
        time.sleep(0.05)
    second = subprocess.run(
        [sys.executable, "-m", "covid_cmsf", *map(str, args)], capture_output=True, text=True, check=False
    )
    (folder / "both.go").touch()
    assert second.returncode == exit_codes.USAGE_ERROR and not second.stdout
    lines = [line for line in second.stderr.splitlines() if "error" in line]
    assert lines == [f"error: another process extracts features to {out}; wait for it, or choose another --out"]
    assert first.wait(timeout=120) == 0 and len(load_features(out).videos) == 20
    assert not (folder / ".both.shards").exists()
