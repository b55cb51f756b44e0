"""Folders that cannot be written: one line that names the place, and what is there stays as it was."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from covid_cmsf.training.run import run_training
from tests.training.command import Command, write_config_file
from tests.training.factories import differing, finish, make_config, stop_at


@pytest.mark.slow
def test_a_run_below_a_file_is_refused_in_one_line(clips: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    path = write_config_file(make_config(clips), tmp_path / "run.yaml")
    command = Command("train", path, "--out", tmp_path / "file" / "run", log=tmp_path / "log")
    assert command.end() in (1, 2)
    assert str(tmp_path / "file") in command.said() and "Traceback" not in command.said()
    assert (tmp_path / "file").read_text() == "in the way"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount a small disk")
def test_a_disk_that_became_read_only_leaves_the_run_as_it_was(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, disk = make_config(clips), tmp_path / "disk"
    run_training(chosen, tmp_path / "whole")
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this system does not let root mount a small disk")
    try:
        with monkeypatch.context() as patch:
            stop_at(patch, 3)
            assert run_training(chosen, disk / "run") == "stopped"
        before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        path = write_config_file(chosen, tmp_path / "run.yaml")
        command = Command("train", path, "--out", disk / "run", log=tmp_path / "log")
        assert command.end() == 1, command.said()
        assert "Read-only file system" in command.said() and str(disk / "run") in command.said()
        assert "Traceback" not in command.said()
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()} == before
        assert finish(chosen, disk / "run") == 0
        assert differing(tmp_path / "whole", disk / "run") == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)
