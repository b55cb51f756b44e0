"""Logging: readable lines through rich on stderr, JSON lines in files.

    logger = logging.getLogger("covid_cmsf.training")
    logger.info("epoch done", extra={"fields": {"epoch": 3, "loss": 0.12}})

Results (tables, JSON) go to stdout and are not logged.
"""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import Progress

console = Console(stderr=True)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line break
ROOT_LOGGERS = ("covid_cmsf", "preprocess")


def printable(text: str) -> str:
    """Replace control characters by `\\x1b` and so on: a file's name must not send escape codes to the terminal."""
    return CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class PrintableFormatter(logging.Formatter):
    """The message alone, printable."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


class JsonLinesFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def setup_logging(*, debug: bool = False, quiet: bool = False) -> None:
    """Send the project's loggers to stderr (`quiet`: warnings only). Call once, at the start.

    Files added by `add_jsonl_file` and `add_text_file` get debug records in any case.
    """
    handler = RichHandler(console=console, show_path=False, show_level=True, markup=False, log_time_format="[%X]")
    handler.setFormatter(PrintableFormatter("%(message)s"))
    handler.setLevel(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)
    for root in ROOT_LOGGERS:
        logger = logging.getLogger(root)
        logger.handlers = [handler]
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


def add_jsonl_file(path: Path) -> logging.Handler:
    """Append every record of the project's loggers to `path` as JSON lines; return the handler."""
    return _add_file(path, JsonLinesFormatter())


def add_text_file(path: Path) -> logging.Handler:
    """Append every record of the project's loggers to `path` as readable lines; return the handler."""
    return _add_file(path, logging.Formatter("%(asctime)s %(levelname)s %(message)s"))


def _add_file(path: Path, formatter: logging.Formatter) -> logging.Handler:
    handler = logging.FileHandler(path, mode="a", encoding="utf-8", delay=True)
    handler.setFormatter(formatter)
    for root in ROOT_LOGGERS:
        logging.getLogger(root).addHandler(handler)
    return handler


def remove_handler(handler: logging.Handler) -> None:
    """Undo `add_jsonl_file` or `add_text_file` and close the file."""
    for root in ROOT_LOGGERS:
        logging.getLogger(root).removeHandler(handler)
    handler.close()


def format_duration(seconds: float) -> str:
    """Format a duration with one unit: `under 1 s`, `45 s`, `12 min`, `3.5 h`, `21 days`."""
    if 0 < seconds < 1:
        return "under 1 s"
    if seconds >= 100 * 3600:
        return f"{seconds / 86400:.0f} days"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def format_bytes(num_bytes: float) -> str:
    """Format a size with one unit: `12 kB`, `3.4 MB`, `1.2 TB`."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes / 1e3:.0f} kB"


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show a progress bar while the block runs (terminals only); yield a function that advances it by one."""
    with Progress(*Progress.get_default_columns(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)


ProgressFactory = Callable[[str, int], AbstractContextManager[Callable[[], None]]]  # the type of `progress_bar`


@contextmanager
def no_progress(description: str, total: int) -> Iterator[Callable[[], None]]:
    """Show nothing: in place of `progress_bar`, in Python."""
    yield lambda: None
