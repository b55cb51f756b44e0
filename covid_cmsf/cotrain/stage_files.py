"""How a stage's folder says what it is: `stage.key` from the beginning, `stage.json` when it is done."""

import json
from pathlib import Path
from typing import Any

from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.cotrain.graph import Stage


def read_key(folder: Path) -> str | None:
    """Of what the folder was begun; None when it does not say."""
    path = folder / "stage.key"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def write_key(folder: Path, key: str) -> None:
    """Says of what the folder is being made."""
    write_text_atomic(folder / "stage.key", key + "\n")


def write_result(stage: Stage, result: dict[str, Any]) -> None:
    """The last thing a stage does."""
    facts = {"key": stage.key, "evaluation": stage.evaluation.model_dump(mode="json"), **result}
    write_text_atomic(stage.folder / "stage.json", json.dumps(facts, indent=1) + "\n")


def read_result(stage: Stage) -> dict[str, Any] | None:
    """What the stage found; None when it is not done, or was made with other settings, or measured otherwise."""
    path = stage.folder / "stage.json"
    if not path.is_file():
        return None
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return None
    same = result.get("key") == stage.key and result.get("evaluation") == stage.evaluation.model_dump(mode="json")
    return result if same else None


def is_done(stage: Stage) -> bool:
    """Whether nothing is left to do."""
    return read_result(stage) is not None
