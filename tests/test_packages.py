"""The archive of sources is complete, and the wheel built from it has all that is read at run time."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("covid_cmsf", "preprocess", "configs")
FOLDERS = (*PACKAGES, "docs", "requirements", "tests", "tools")
TOP = {
    *("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff"),
    *("CONTRIBUTING.md", "SECURITY.md", "Makefile", "hubconf.py", "mkdocs.yml"),
}


def files(folder: Path) -> set[str]:
    """Return what is below a folder and not written by running or building something."""
    paths = (path.relative_to(folder) for name in FOLDERS for path in (folder / name).rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts and ".egg-info" not in str(path)}


def build(hook: str, source: Path, out: Path) -> Path:
    """Call a hook of PEP 517 as pip does; setuptools is installed, so nothing is downloaded."""
    out.mkdir()
    script = f"from setuptools import build_meta; build_meta.{hook}({str(out)!r})"
    done = subprocess.run([sys.executable, "-c", script], cwd=source, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (built,) = out.iterdir()
    return built


@pytest.mark.slow
def test_nothing_is_missing_in_the_sources_and_in_the_wheel_built_from_them(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in FOLDERS:
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in TOP:
        shutil.copy(ROOT / name, clone)
    expected = files(clone)
    assert len(expected) > 500

    with tarfile.open(build("build_sdist", clone, tmp_path / "sdist")) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    assert expected - files(source) == set()
    assert TOP - {path.name for path in source.iterdir()} == set()

    with zipfile.ZipFile(build("build_wheel", source, tmp_path / "wheel")) as wheel:
        names = set(wheel.namelist())
    packaged = {name for name in expected if name.startswith(PACKAGES)}
    # `configs` is installed as a package of its own below `covid_cmsf`.
    wanted = {f"covid_cmsf/{name}" if name.startswith("configs/") else name for name in packaged}
    assert {name for name in wanted if name.endswith((".yaml", ".js", ".css", ".html", "py.typed"))}
    assert wanted - names == set()
