"""The folder of a run.

RUN/
  config.yaml         the settings, resolved: `covid-cmsf train RUN` continues with them
  environment.jsonl   one line a start: command, versions, devices, state of the git checkout
  metrics.jsonl       one line every few steps
  log.txt             what was said on the screen
  tensorboard/        the metrics again
  checkpoints/        see `checkpoints`
  summary.json        written at the end
"""

import fcntl
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from covid_cmsf import __version__
from covid_cmsf.files import write_text_atomic
from covid_cmsf.training.config import TrainConfig

MUTABLE_SECTIONS = ("runtime",)  # sections that may differ when a run is continued
CONFIG_FILE = "config.yaml"


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """The settings as plain values."""
    return config.model_dump(mode="json")


def write_config(folder: Path, config: TrainConfig) -> None:
    """Puts the resolved settings into the folder."""
    text = yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
    write_text_atomic(folder / CONFIG_FILE, text)


def diff_config(old: dict[str, Any], new: dict[str, Any], place: str = "") -> list[str]:
    """`optimizer.lr: 0.001 -> 0.002`, a line for each value that is not the same."""
    lines = []
    for key in dict.fromkeys((*old, *new)):
        name, before, after = f"{place}{key}", old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            lines += diff_config(before, after, f"{name}.")
        elif before != after:
            lines.append(f"{name}: {before!r} -> {after!r}")
    return lines


def check_same_config(folder: Path, old: TrainConfig, new: TrainConfig) -> None:
    """ValueError with the differences when a run would be continued with other settings."""
    before, after = ({k: v for k, v in config_to_dict(one).items() if k not in MUTABLE_SECTIONS} for one in (old, new))
    changes = diff_config(before, after)
    if changes:
        raise ValueError(
            f"{folder} holds a run with other settings:\n  "
            + "\n  ".join(changes)
            + "\nuse another --out for a new run, the old settings to continue, or --accept-changes to continue with "
            "the new ones"
        )


@contextmanager
def lock_dir(folder: Path) -> Iterator[None]:
    """Only one run at a time writes into the folder."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process is training in {folder}") from None
        yield


def log_environment(folder: Path, info: dict[str, Any]) -> None:
    """Adds a line about this start to environment.jsonl."""
    line = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": sys.argv,
        "versions": {
            "covid-cmsf": __version__,
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "torchvision", "numpy", "av")},
            "cuda": torch.version.cuda,
        },
        "machine": {"cpu": platform.machine(), "system": platform.platform(), "threads": torch.get_num_threads()},
        "git": git_state(Path(__file__).parent),
        **info,
    }
    with (folder / "environment.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit, and whether files were changed since; None outside of a checkout, or without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()
