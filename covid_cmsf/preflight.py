"""Preflight: what can be checked before long work is checked before, and nothing is written until it passes.

A check is a function that returns problems, one line each. `training.preflight`, `evaluation.preflight` and
`cotrain.preflight` have the checks; `raise_problems` shows all of them at once.
"""

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

from covid_cmsf.exit_codes import USER_ERRORS
from covid_cmsf.files import read_text
from covid_cmsf.logs import format_bytes

logger = logging.getLogger(__name__)
MAX_STAGES_NAMED = 3
Value = TypeVar("Value")


@dataclass(frozen=True)
class Problem:
    """One line about what is wrong and what would be accepted. A warning does not stop the work."""

    message: str
    severity: Literal["error", "warning"] = "error"
    stage: str = ""  # of a plan


class PreflightError(ValueError):
    """The work was not started: the message has one line per problem."""


def raise_problems(problems: Iterable[Problem]) -> None:
    """Log the warnings; raise PreflightError with all errors, if there are any."""
    problems = list(problems)
    errors, warnings = (
        merge_stages([one for one in problems if one.severity == severity]) for severity in ("error", "warning")
    )
    for line in warnings:
        logger.warning("%s", line)
    if len(errors) == 1:
        raise PreflightError(errors[0])
    if errors:
        raise PreflightError("\n  ".join([f"{len(errors)} problems, nothing was started:", *errors]))


def attempt(problems: list[Problem], work: Callable[[], Value]) -> Value | None:
    """Return what `work` returns; or add the user's mistake that it raises to `problems` and return None."""
    try:
        return work()
    except USER_ERRORS as error:
        problems.append(Problem(str(error)))
        return None


def merge_stages(problems: Sequence[Problem]) -> list[str]:
    """Return one line per message, in order, with the stages that have it."""
    stages: dict[str, list[str]] = {}
    for one in problems:
        stages.setdefault(one.message, []).append(one.stage)
    return [_name_stages(list(dict.fromkeys(names))) + message for message, names in stages.items()]


def _name_stages(names: list[str]) -> str:
    names = [name for name in names if name]
    if not names:
        return ""
    if len(names) > MAX_STAGES_NAMED:
        return f"{len(names)} stages: "
    return f"stage{'s' if len(names) > 1 else ''} {', '.join(names)}: "


def of_stage(problems: Iterable[Problem], stage: str) -> list[Problem]:
    """Return the problems with the name of their stage."""
    return [replace(one, stage=stage) for one in problems]


# Space


def check_disk(folder: Path, needed: float, what: str) -> list[Problem]:
    """Check that the disk of `folder`, which need not exist yet, has room for `needed` bytes."""
    existing = existing_parent(folder)
    free = shutil.disk_usage(existing).free
    if needed <= free:
        return []
    return [
        Problem(f"{what} need about {format_bytes(needed)}, and the disk of {existing} has {format_bytes(free)} free")
    ]


def check_memory(needed: float, what: str, *, available: float | None = None) -> list[Problem]:
    """Check that `needed` bytes fit into the memory that is available now (given for a GPU)."""
    available = available_memory() if available is None else available
    if needed <= available:
        return []
    return [Problem(f"{what} need about {format_bytes(needed)} of memory, and {format_bytes(available)} are available")]


def existing_parent(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    path = Path(path).absolute()
    while not path.exists():
        path = path.parent
    return path


def available_memory() -> float:
    """Return the bytes that can be allocated now: of the machine, or of the control group (a container, a job)."""
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"  # macOS has no free pages
    available = float(os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE"))
    for line in _read_lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            available = 1024.0 * int(line.split()[1])
    group = Path("/sys/fs/cgroup")
    limit, used = (_read_lines(group / name) for name in ("memory.max", "memory.current"))
    if limit and used and limit[0] != "max":
        available = min(available, float(limit[0]) - float(used[0]))
    return available


def _read_lines(path: Path) -> list[str]:
    return read_text(path).splitlines() if path.is_file() else []
