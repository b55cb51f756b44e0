"""The cost of extraction: every kind of motion is measured on the same frames, beyond RGB alone."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.factories import moving_square, write_video
from tools.benchmark import app
from tools.benchmarks.extraction import choose_clips


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    for number in range(3):
        write_video(tmp_path / "videos" / f"v{number}.mp4", moving_square(8, seed=number), codec="libx264")
    return tmp_path / "videos"


@pytest.mark.slow  # encodes
def test_costs_are_those_beyond_rgb_alone(videos: Path, tmp_path: Path) -> None:
    arguments = ["extraction", str(videos), "--backends", "dis,farneback", "--limit", "2", "--max-frames", "6"]
    ended = CliRunner().invoke(app, [*arguments, "--short-edge", "0", "--json", str(tmp_path / "costs.json")])
    assert ended.exit_code == 0, ended.output
    results = json.loads((tmp_path / "costs.json").read_text())["results"]
    assert (results["clips"], results["frames"]) == (2, 12)
    for name in ("dis", "farneback", "motion"):
        assert results[f"{name}_bytes_a_frame"] > 0 and results[f"{name}_compute_cpu_ms_a_frame"] > 0
    assert results["rgb_bytes_a_frame"] > 0 and results["rgb_compute_cpu_ms_a_frame"] == 0
    assert results["rgbdiff_bytes_a_frame"] == 0 and results["rgbdiff_cpu_ms_a_frame"] > 0


def test_clips_are_spread_over_all_that_are_found(videos: Path, tmp_path: Path) -> None:
    (videos / "notes.txt").write_text("no video")
    assert [path.name for path in choose_clips([videos], 2)] == ["v0.mp4", "v2.mp4"]
    assert len(choose_clips([videos], 9)) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--backends", "raft"], "unknown backend raft"), (["--backends", "tvl1"], "unknown backend tvl1")],
)
def test_what_cannot_be_measured_is_refused(videos: Path, options: list[str], message: str) -> None:
    ended = CliRunner().invoke(app, ["extraction", str(videos), *options])
    assert ended.exit_code == 2 and message in ended.output
    assert CliRunner().invoke(app, ["extraction", str(videos / "nothing")]).exit_code == 2
