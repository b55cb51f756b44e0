"""The command line as a user meets it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from covid_cmsf import __version__
from covid_cmsf.cli import doctor
from covid_cmsf.cli.app import build_command
from tests.factories import make_table_store, make_ucf

COMMAND = [sys.executable, "-m", "covid_cmsf"]


def run(*args: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, args)], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
def test_version_and_help() -> None:
    assert run("--version").stdout.strip() == f"covid-cmsf {__version__}"
    for args in ([], ["preprocess"], ["clips"], ["clips", "show"], ["doctor"], ["demo-videos"]):
        result = run(*args, "--help")
        assert result.returncode == 0 and "Usage" in result.stdout, result.stderr


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and the click command of every command that is not a group."""
    subcommands = getattr(command, "commands", {})
    if not subcommands:
        yield path, command
    for name, subcommand in subcommands.items():
        yield from walk(subcommand, (*path, name))


COMMANDS = dict(walk(build_command()))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_no_type_beside_flags(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    build_command()([*path, "--help"], standalone_mode=False)
    text = capsys.readouterr().out
    assert "--help" in text and "<bool>" not in text
    assert any(line.strip().startswith(f"covid-cmsf {' '.join(path)}") for line in text.splitlines())


@pytest.mark.slow
def test_the_module_preprocess_has_the_same_help() -> None:
    result = subprocess.run([sys.executable, "-m", "preprocess", "--help"], capture_output=True, text=True, timeout=120)
    assert "--retry-failed" in result.stdout and "<bool>" not in result.stdout


def test_every_option_out_has_the_short_name_o() -> None:
    names = {
        path: param.opts for path, command in COMMANDS.items() for param in command.params if "--out" in param.opts
    }
    assert len(names) > 10 and [path for path, opts in names.items() if "-o" not in opts] == []


def test_help_comes_without_heavy_imports() -> None:
    code = "import sys, covid_cmsf.cli.app; print({'torch', 'numba', 'cv2', 'av'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_training_is_configured_without_torchvision() -> None:
    """It imports torch._dynamo, which takes twice as long as PyTorch itself; only what builds a ResNet needs it."""
    code = "import sys, covid_cmsf.cotrain.run; print({'torchvision', 'torch._dynamo'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"


def test_preprocessing_workers_do_not_import_torch() -> None:
    code = "import sys, preprocess.convert, preprocess.run, preprocess.config; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.mark.slow
def test_doctor_says_whether_all_is_well(tmp_path: Path) -> None:
    result = run("doctor", tmp_path, "--json")
    report = json.loads(result.stdout)
    assert (result.returncode == 0) == report["healthy"]
    assert {"python", "torch", "H.264", "OpenCV TV-L1"} <= {finding["name"] for finding in report["checks"]}


def test_doctor_finds_a_torchvision_that_was_built_for_another_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(doctor.check_torchvision()) == []
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    monkeypatch.delitem(sys.modules, "torchvision")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = doctor.check_torchvision()
    assert found.status == "error" and "torchvision::nms" in found.message and "--index-url" in found.message


@pytest.mark.slow
def test_doctor_reports_a_folder_that_cannot_be_written() -> None:
    result = run("doctor", "/proc/nowhere", "--json")
    bad = [f for f in json.loads(result.stdout)["checks"] if f["status"] == "error"]
    assert result.returncode == 1 and [finding["name"] for finding in bad] == ["/proc/nowhere"]


def test_a_store_without_videos_is_not_shown(tmp_path: Path) -> None:
    arguments = ["clips", "show", str(make_table_store(tmp_path / "clips", classes=0)), "-o", str(tmp_path / "a.png")]
    with pytest.raises(ValueError, match="clips has no videos"):
        build_command()(arguments, standalone_mode=False)


@pytest.mark.slow
def test_from_videos_to_a_picture(tmp_path: Path) -> None:
    videos, clips = make_ucf(tmp_path / "videos", num_frames=8), tmp_path / "clips"
    assert run("preprocess", videos, "--out", clips, "--layout", "ucf101", "--workers", "2").returncode == 0
    info = json.loads(run("clips", "info", clips, "--json").stdout)
    assert info["num_videos"] == 6 and info["store"]["flow"]["backend"] == "numba"
    table = run("clips", "info", clips).stdout
    assert "Archery" in table and "bytes per frame" in table
    assert "all files open and match" in run("clips", "check", clips).stdout
    assert run("clips", "show", clips, "Archery", "--out", tmp_path / "page.png").returncode == 0
    assert (tmp_path / "page.png").stat().st_size > 10_000
    (clips / "rgb" / "Archery" / "v_Archery_g01_c01.mp4").unlink()
    broken = run("clips", "check", clips)
    assert broken.returncode == 1 and "v_Archery_g01_c01.mp4 is missing" in broken.stdout


@pytest.mark.slow
def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    for args in (
        ["clips", "info", tmp_path / "no"],
        ["clips", "check", tmp_path],
        ["preprocess", tmp_path / "no", "--out", "x"],
    ):
        result = run(*args)
        assert result.returncode == 2 and result.stderr.startswith("error: ") and "Traceback" not in result.stderr
    assert "Traceback" in run("clips", "info", tmp_path / "no", "--debug").stderr
