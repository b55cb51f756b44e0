"""Sixteen small videos, and `covid-cmsf learn` in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.factories import moving_square, write_video

ROOT = Path(__file__).parents[2]
Learn = Callable[..., "subprocess.CompletedProcess[str]"]


def make_videos(folder: Path, count: int = 16, *, first: int = 0) -> Path:
    """Write videos of 24 frames, two per `tape`."""
    for number in range(first, first + count):
        write_video(folder / f"tape{number // 2}_{number}.mp4", moving_square(24, seed=number))
    return folder


def run_learn(videos: Path, out: Path, *options: str, kill: str = "never") -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.projects.driver", kill, str(videos), "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    settings = ("--short-edge", "32", "--device", "cpu", "--workers", "2")
    return subprocess.run(
        [*command, *settings, *options], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900
    )


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_videos(tmp_path_factory.mktemp("learn") / "videos")


@pytest.fixture(scope="session")
def project(videos: Path) -> Path:
    """A finished project: only read it."""
    out = videos.parent / "project"
    done = run_learn(videos, out, "--source-pattern", r"(tape\d+)_")
    assert done.returncode == 0, done.stderr
    (videos.parent / "stdout").write_text(done.stdout)
    (videos.parent / "stderr").write_text(done.stderr)
    return out
