"""Logging: lines for people through rich on stderr, lines for machines as JSONL in a file.

    logger = logging.getLogger("covid_cmsf.training")
    logger.info("epoch done", extra={"fields": {"epoch": 3, "loss": 0.12}})

Results (tables, JSON) go to stdout and are not logged.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler
from rich.progress import Progress

console = Console(stderr=True)
ROOT_LOGGERS = ("covid_cmsf", "preprocess")


class JsonLinesFormatter(logging.Formatter):
    """One JSON object a line: time (UTC), level, logger, message, and the record's `fields`."""

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
    """Sends our loggers to the screen (`quiet`: warnings only); call once, at the start. Files get debug lines too."""
    handler = RichHandler(console=console, show_path=False, show_level=True, markup=False, log_time_format="[%X]")
    handler.setLevel(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)
    for root in ROOT_LOGGERS:
        logger = logging.getLogger(root)
        logger.handlers = [handler]
        logger.setLevel(logging.DEBUG)
        logger.propagate = False


def add_jsonl_file(path: Path) -> logging.Handler:
    """Appends every record of our loggers to `path` as JSON lines; returns the handler for `remove_handler`."""
    return _add_file(path, JsonLinesFormatter())


def add_text_file(path: Path) -> logging.Handler:
    """As `add_jsonl_file`, but lines for people."""
    return _add_file(path, logging.Formatter("%(asctime)s %(levelname)s %(message)s"))


def _add_file(path: Path, formatter: logging.Formatter) -> logging.Handler:
    handler = logging.FileHandler(path, mode="a", encoding="utf-8", delay=True)
    handler.setFormatter(formatter)
    for root in ROOT_LOGGERS:
        logging.getLogger(root).addHandler(handler)
    return handler


def remove_handler(handler: logging.Handler) -> None:
    """Undoes `add_jsonl_file` or `add_text_file` and closes the file."""
    for root in ROOT_LOGGERS:
        logging.getLogger(root).removeHandler(handler)
    handler.close()


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar with the time left on a terminal, nothing elsewhere; yields the function that advances it by one."""
    with Progress(*Progress.get_default_columns(), console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda: bar.advance(task)
