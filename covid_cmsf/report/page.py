"""The folder of a report: the page, its scripts, and the plotting library, copied so that nothing is fetched."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from PIL import Image

from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.clips.flow_colors import wheel_picture

MARK = "report.json"  # says that a folder is a report, and of what
PLOTLY = "plotly-cartesian.min.js"  # lines, bars, heat maps: a third of the whole library, and faster to start
# V8 then compiles all of it on a thread beside the page's: measured, the first chart stands after 1.1 s, not 1.6 s.
COMPILE_HINT = b"//# allFunctionsCalledOnLoad\n"


def prepare_folder(out: Path) -> None:
    """Makes the folder; ValueError when it is there and is something else than an earlier report."""
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; --out names a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / MARK).is_file():
        raise ValueError(f"{out} is not empty and not a report; give --out a new folder")
    for name in ("assets", "data", "pictures", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)


def copy_page(out: Path) -> None:
    """index.html and assets/."""
    folder = files("covid_cmsf.report") / "assets"
    for entry in folder.iterdir():
        if entry.name.endswith((".css", ".js")):
            _copy(entry.read_bytes(), out / "assets" / entry.name)
    _copy((folder / "page.html").read_bytes(), out / "index.html")
    library = files("covid_cmsf.report") / "vendor" / PLOTLY
    _copy(COMPILE_HINT + library.read_bytes(), out / "assets" / PLOTLY)
    Image.fromarray(wheel_picture(96)).save(out / "assets" / "wheel.png")


def write_mark(out: Path, values: dict[str, Any]) -> None:
    """What the report is of; the last thing that is written."""
    write_text_atomic(out / MARK, json.dumps(values, indent=1) + "\n")


def read_mark(out: Path) -> dict[str, Any]:
    """What `write_mark` wrote; FileNotFoundError where there is no report."""
    path = out / MARK
    if not path.is_file():
        raise FileNotFoundError(f"no report in {out}; say of what: covid-cmsf report RUN_OR_PLAN --out {out}")
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return values


def _copy(data: bytes, path: Path) -> None:
    if not path.is_file() or path.read_bytes() != data:
        path.write_bytes(data)
