"""Results as JSON: a dataclass in, a mapping out; every one names its protocol and what it was computed from."""

import json
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from covid_cmsf.atomic import write_text_atomic


def result_values(kind: str, result: Any) -> dict[str, Any]:
    """The result as plain values, `kind` first: retrieval, linear, knn, finetune, fusion, baselines."""
    assert is_dataclass(result) and not isinstance(result, type)
    values: dict[str, Any] = json.loads(json.dumps(asdict(result)))
    return {"kind": kind, **values}


def write_result(path: Path, kind: str, result: Any) -> None:
    """The result as a JSON file."""
    write_text_atomic(Path(path), json.dumps(result_values(kind, result), indent=1) + "\n")
