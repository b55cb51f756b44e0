"""`make real`: which commands it runs, and what it says without the folder of videos."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60)


def commands(*arguments: str) -> list[str]:
    done = make("--dry-run", "real", "CLIPS=my UCF-101", *arguments)
    assert done.returncode == 0, done.stderr
    return [line.partition("bin/")[2] for line in done.stdout.splitlines() if "bin/covid-cmsf" in line]


def test_real_prepares_trains_and_reports_ten_classes() -> None:
    prepare, train, report = commands()
    assert prepare.startswith("covid-cmsf preprocess 'my UCF-101' --out clips/ucf101-ten --layout ucf101 ")
    assert "--classes Archery,BasketballDunk," in prepare and "--splits" not in prepare
    assert train.startswith("covid-cmsf cotrain real/ucf101-ten --clips clips/ucf101-ten") and "--seeds" not in train
    assert report.startswith("covid-cmsf report runs/ucf101-ten ")
    prepare, train, _ = commands("SEEDS=0,1", "LISTS=ucfTrainTestlist")
    assert "--seeds '0,1'" in train and "--splits 'ucfTrainTestlist'" in prepare


def test_real_without_videos_says_what_to_give() -> None:
    done = make("real")
    assert done.returncode == 2 and "make real CLIPS=UCF-101: give the folder" in done.stdout
