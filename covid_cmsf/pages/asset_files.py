"""Scripts and styles of the pages: those that all share, and those of one page."""

import io
from importlib.resources import files
from pathlib import Path

from PIL import Image

from covid_cmsf.clips.flow_color import color_wheel_image


def read_assets(package: str) -> dict[str, bytes]:
    """Return {file name: content} of a package's assets/, the shared ones, and the color wheel of flow."""
    found = {}
    for owner in ("covid_cmsf.pages", package):
        for entry in (files(owner) / "assets").iterdir():
            if entry.name.endswith((".css", ".js")):
                found[entry.name] = entry.read_bytes()
    wheel = io.BytesIO()
    Image.fromarray(color_wheel_image(96)).save(wheel, format="PNG")
    return {**found, "wheel.png": wheel.getvalue()}


def read_page(package: str) -> bytes:
    """Return assets/page.html of a package."""
    return (files(package) / "assets" / "page.html").read_bytes()


def copy_assets(out: Path, package: str) -> None:
    """Write index.html and assets/ of a page; files that are there already stay."""
    (out / "assets").mkdir(parents=True, exist_ok=True)
    write_if_changed(out / "index.html", read_page(package))
    for name, data in read_assets(package).items():
        write_if_changed(out / "assets" / name, data)


def write_if_changed(path: Path, data: bytes) -> None:
    """Write a file unless it has this content."""
    if not path.is_file() or path.read_bytes() != data:
        path.write_bytes(data)
