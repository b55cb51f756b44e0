"""The progress bar of a run: loss, purity, examples/s, time left. Elsewhere than on a terminal, a line an epoch."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from covid_cmsf.logs import console

logger = logging.getLogger(__name__)


class Display:
    """What a person sees while training goes on."""

    def __init__(self, bar: Progress, *, total: int, done: int, quiet: bool = False) -> None:
        self._bar, self._quiet = bar, quiet
        self._task = bar.add_task("training", total=total, completed=done, facts="")

    def step(self, done: int) -> None:
        """So many steps are done."""
        self._bar.update(self._task, completed=done)

    def facts(self, values: dict[str, object]) -> None:
        """The newest numbers."""
        self._bar.update(self._task, facts=in_short(values))

    def epoch(self, epoch: int, epochs: int, values: dict[str, object]) -> None:
        """The end of an epoch: a line in the log."""
        if self._quiet:
            return
        logger.info("epoch %d of %d done  %s", epoch, epochs, in_short(values), extra={"fields": values})


def in_short(values: dict[str, object]) -> str:
    """`loss 0.523  purity 0.71  rank 9.8  clips/s 412`."""
    shown = [("loss", "loss", ".3f"), ("purity", "purity", ".2f"), ("purity_free", "free", ".2f")]
    shown += [("effective_rank", "rank", ".1f"), ("accuracy", "accuracy", ".2f"), ("examples_per_s", "clips/s", ".0f")]
    words = [f"{name} {values[key]:{form}}" for key, name, form in shown if isinstance(values.get(key), float)]
    return "  ".join(words)


@contextmanager
def display(*, total: int, done: int, quiet: bool) -> Iterator[Display]:
    """A bar over `total` steps; `quiet` for processes that do not talk."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    off = quiet or not console.is_terminal
    with Progress(*columns, *times, console=console, disable=off, refresh_per_second=4) as bar:
        yield Display(bar, total=total, done=done, quiet=quiet)
