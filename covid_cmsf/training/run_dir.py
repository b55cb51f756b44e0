"""The files of a run folder.

RUN/
  config.yaml         the resolved configuration: `covid-cmsf train RUN` resumes with it
  environment.jsonl   one line per start: command, versions, devices, state of the git checkout
  metrics.jsonl       one line every few steps
  log.txt             the log messages
  tensorboard/        the metrics again, with `runtime.loggers=[tensorboard]`
  wandb/              the metrics again, with `runtime.loggers=[wandb]`
  checkpoints/        see `checkpoints`
  summary.json        written at the end
"""

import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from covid_cmsf import __version__
from covid_cmsf.config import config_differences
from covid_cmsf.files import remove_temporary, write_text_atomic
from covid_cmsf.locks import lock_file
from covid_cmsf.training.config import TrainConfig

MUTABLE_SECTIONS = ("runtime", "logging")  # may differ when a run is resumed
CONFIG_FILE = "config.yaml"


def config_to_dict(config: TrainConfig) -> dict[str, Any]:
    """Return the configuration as plain values."""
    return config.model_dump(mode="json")


def write_config(folder: Path, config: TrainConfig) -> None:
    """Write the resolved configuration to the folder."""
    text = yaml.safe_dump(config_to_dict(config), sort_keys=False, allow_unicode=True)
    write_text_atomic(folder / CONFIG_FILE, text)


def check_same_config(folder: Path, old: TrainConfig, new: TrainConfig) -> None:
    """Raise ValueError with the differences if a run would be resumed with another configuration."""
    before, after = ({k: v for k, v in config_to_dict(one).items() if k not in MUTABLE_SECTIONS} for one in (old, new))
    changes = [f"{key}: {was!r} -> {now!r}" for key, (was, now) in config_differences(before, after).items()]
    if changes:
        raise ValueError(
            f"{folder} holds a run with another configuration:\n  "
            + "\n  ".join(changes)
            + "\nuse another --out for a new run, the old configuration to resume, or --accept-changes to resume with "
            "the new one"
        )


@contextmanager
def create_run_dir(folder: Path) -> Iterator[None]:
    """Create the folder; if the run fails before it has a configuration, remove what was created."""
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        if created and not (folder / CONFIG_FILE).exists():
            (folder / "log.txt").unlink(missing_ok=True)
            for path in created:
                with suppress(OSError):  # something else is in it by now
                    path.rmdir()


@contextmanager
def lock_dir(folder: Path) -> Iterator[None]:
    """Lock the folder: only one process at a time writes to it. The lock's file is gone afterward.

    What a kill left there is removed.
    """
    with lock_file(folder / ".lock", message=f"another process is writing to {folder}"):
        remove_temporary(folder)
        yield


def log_environment(folder: Path, info: dict[str, Any]) -> None:
    """Append a line about this start to environment.jsonl."""
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
    """Return the commit and whether files have changed since; None outside a checkout or without git."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
