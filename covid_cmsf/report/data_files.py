"""Data as scripts: a page that is opened from disk may load those, but fetch nothing."""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from covid_cmsf.atomic import write_text_atomic

DIGITS = 6  # significant


def script(name: str, values: Any) -> str:
    """`Report.accept("name", {...})` in ASCII: what videos are called cannot end a script or a string."""
    text = json.dumps(rounded(values), separators=(",", ":"), allow_nan=False).replace("</", "<\\/")
    return f"Report.accept({json.dumps(name)},{text});\n"


def rounded(values: Any) -> Any:
    """Plain values; numbers with six digits, and None where they are not finite."""
    if isinstance(values, dict):
        return {str(key): rounded(value) for key, value in values.items()}
    if isinstance(values, list | tuple):
        return [rounded(value) for value in values]
    if isinstance(values, float):
        return float(f"{values:.{DIGITS}g}") if math.isfinite(values) else None
    return values


def write_data(folder: Path, files: dict[str, Any]) -> str:
    """Writes `<name>.js` for each of the files and, last, `version.js`; removes those of earlier times.

    Returns the version, a hash of all of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    for name, values in files.items():
        text = script(name, values)
        digest.update(text.encode())
        path = folder / f"{name}.js"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            write_text_atomic(path, text)
    version = digest.hexdigest()[:16]
    write_text_atomic(folder / "version.js", script("version", version))
    for old in folder.glob("*.js"):
        if old.stem not in {*files, "version"}:
            old.unlink()
    return version
