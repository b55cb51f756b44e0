"""Progress of a run: a bar on a terminal, log lines elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from covid_cmsf.logs import console

logger = logging.getLogger(__name__)


class RunProgress:
    """Count videos and frames; show a bar on a terminal, elsewhere log a line every `log_interval` seconds."""

    def __init__(self, total: int, done: int, *, log_interval: float = 30.0) -> None:
        self.videos, self.frames = 0, 0
        self._num_remaining = total - done
        self._log_interval = log_interval
        self._start = self._last_log_time = time.monotonic()
        self._progress_bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._progress_bar.add_task("videos", total=total, completed=done, speed="")

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def add(self, *, videos: int = 0, frames: int = 0) -> None:
        """Add finished videos and frames."""
        self.videos += videos
        self.frames += frames
        speed = f"{self.videos / self.seconds:.2f} videos/s, {self.frames / self.seconds:.0f} frames/s"
        self._progress_bar.update(self._task, advance=videos, speed=speed)
        if not console.is_terminal and time.monotonic() - self._last_log_time > self._log_interval:
            self._last_log_time = time.monotonic()
            num_remaining = self._num_remaining - self.videos
            eta = f"{num_remaining * self.seconds / self.videos / 60:.0f} min" if self.videos else "unknown"
            logger.info("%d videos done, %d left, %s, time left %s", self.videos, num_remaining, speed, eta)

    @contextmanager
    def display(self) -> Iterator["RunProgress"]:
        """Show the bar while the block runs (terminals only)."""
        if console.is_terminal:
            with self._progress_bar:
                yield self
        else:
            yield self
