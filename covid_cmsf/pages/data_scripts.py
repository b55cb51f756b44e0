"""Data of a page, written as scripts: a page opened from disk can load scripts but cannot fetch files."""

import hashlib
import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from covid_cmsf.files import read_text, write_text_atomic

DIGITS = 6  # significant digits


def data_script(name: str, values: Any) -> str:
    """Return `Page.accept("name", {...})` in ASCII; names of videos cannot end the script or a string."""
    text = json.dumps(round_values(values), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return f"Page.accept({json.dumps(name)},{text});\n"


def round_values(values: Any) -> Any:
    """Round numbers to six significant digits; None where they are not finite."""
    if isinstance(values, dict):
        return {str(key): round_values(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [round_values(value) for value in values]
    if isinstance(values, float):
        return float(f"{values:.{DIGITS}g}") if math.isfinite(values) else None
    return values


def write_data(folder: Path, files: Iterable[tuple[str, Any]]) -> str:
    """Write `<name>.js` for each (name, values) and, last, `version.js`; remove older files.

    Return the version, a hash of all files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    written = {"version"}
    for name, values in files:
        written.add(name)
        text = data_script(name, values)
        digest.update(text.encode())
        path = folder / f"{name}.js"
        if not path.is_file() or read_text(path) != text:
            write_text_atomic(path, text)
    version = digest.hexdigest()[:16]
    write_text_atomic(folder / "version.js", data_script("version", version))
    for old in folder.glob("*.js"):
        if old.stem not in written:
            old.unlink()
    return version
