"""Monitoring of a run: metrics.jsonl and other loggers, the progress bar, and detection of collapse."""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from covid_cmsf.files import write_text_atomic
from covid_cmsf.logs import console
from covid_cmsf.methods.base import Metrics
from covid_cmsf.methods.diagnostics import embedding_std
from covid_cmsf.methods.memory_bank import MemoryBanks
from covid_cmsf.models.effective_rank import effective_rank
from covid_cmsf.training.config import LoggingConfig
from covid_cmsf.training.loggers import MetricsLogger
from covid_cmsf.training.train_state import TrainState

logger = logging.getLogger(__name__)
MAX_ENTRIES = 4096  # of the bank, for the effective rank


class MetricsWriter:
    """Append lines to metrics.jsonl; a resumed run first drops lines after its `step`, which a kill left behind.

    Numbers also go to the `loggers`, which are closed with it.
    """

    def __init__(self, folder: Path, *, step: int, interval: int, loggers: Sequence[MetricsLogger] = ()) -> None:
        self.path = folder / "metrics.jsonl"
        drop_after(self.path, step)
        warn_of_missing(self.path, step, interval)
        self._file = self.path.open("a", encoding="utf-8")
        self._loggers = loggers

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write one line."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        for one in self._loggers:
            one.write(step, numbers)

    def close(self) -> None:
        """Flush and close."""
        self._file.close()
        for one in self._loggers:
            one.close()


OLD_METRIC_NAMES = {  # of version 0.1.0
    "examples_per_s": "samples_per_s",
    "data_share": "data_fraction",
    "bank_rows": "bank_filled",
}


def _parse_metrics(line: str) -> dict[str, Any]:
    """One line of metrics.jsonl, under today's names."""
    values = {OLD_METRIC_NAMES.get(name, name): value for name, value in json.loads(line).items()}
    if not isinstance(values.get("step"), int):
        raise ValueError("a line of metrics has a step")
    return values


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics file, without damaged ones; the last may have been cut short by a kill."""
    if not path.is_file():
        return []
    lines, damaged = [], []
    texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(texts, start=1):
        try:
            lines.append(_parse_metrics(line))
        except (ValueError, AttributeError):  # not JSON, or not an object
            damaged += [number] if number < len(texts) else []
    if damaged:
        logger.warning("%s: %d damaged lines are left out, the first: line %d", path, len(damaged), damaged[0])
    return lines


def last_metrics(path: Path) -> dict[str, Any] | None:
    """Return the newest complete line of a file that is being written; None if there is none yet."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")[:-1]
    try:
        return _parse_metrics(lines[-1]) if lines else None
    except (ValueError, AttributeError):
        return None


def drop_after(path: Path, step: int) -> None:
    """Remove the lines after `step`."""
    if path.is_file():
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        write_text_atomic(path, "".join(json.dumps(line) + "\n" for line in kept))


def warn_of_missing(path: Path, step: int, interval: int) -> None:
    """Warn if the lines do not go on to `step`: the file lost its end, which a resumed run does not write again."""
    lines = read_metrics(path)
    last = int(lines[-1]["step"]) if lines else 0
    if step - step % interval > last:
        logger.warning("%s: the metrics of steps %d to %d are missing", path, last + 1, step)


class ProgressDisplay:
    """The progress bar: loss, purity, clips per second, time left. Without a terminal, a log line per epoch."""

    def __init__(self, bar: Progress, *, total: int, done: int, quiet: bool = False) -> None:
        self._bar, self._quiet = bar, quiet
        self._task = bar.add_task("training", total=total, completed=done, metrics="")

    def set_step(self, done: int) -> None:
        """Set the number of finished steps."""
        self._bar.update(self._task, completed=done)

    def show_metrics(self, values: dict[str, object]) -> None:
        """Show the newest metrics."""
        self._bar.update(self._task, metrics=format_metrics(values))

    def log_epoch(self, epoch: int, epochs: int, values: dict[str, object]) -> None:
        """Log the end of an epoch."""
        if self._quiet:
            return
        logger.info("epoch %d of %d done  %s", epoch, epochs, format_metrics(values), extra={"fields": values})


def format_metrics(values: Mapping[str, object]) -> str:
    """Format metrics in one line: `loss 0.523  purity 0.71  rank 9.8  clips/s 412`."""
    columns = [("loss", "loss", ".3f"), ("purity", "purity", ".2f"), ("purity_free", "unconstrained purity", ".2f")]
    columns += [] if "loss" in values else [("bank_filled", "no loss yet, bank entries", ".0f")]
    columns += [("effective_rank", "rank", ".1f"), ("accuracy", "accuracy", ".2f"), ("samples_per_s", "clips/s", ".0f")]
    cells = [f"{name} {values[key]:{form}}" for key, name, form in columns if isinstance(values.get(key), float)]
    return "  ".join(cells)


@contextmanager
def progress_display(*, total: int, done: int, quiet: bool) -> Iterator[ProgressDisplay]:
    """Show a progress bar over `total` steps; `quiet` for all processes but the first."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[metrics]}"),
    )
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    off = quiet or not console.is_terminal
    with Progress(*columns, *times, console=console, disable=off, refresh_per_second=4) as bar:
        yield ProgressDisplay(bar, total=total, done=done, quiet=quiet)


MEAN_SHIFT_ADVICE = "ema_momentum, method.head.output_batch_norm=true or a longer InfoNCE start help"


class CollapseError(RuntimeError):
    """The embeddings have collapsed, and logging.on_collapse is `stop`."""


def bank_metrics(banks: MemoryBanks) -> Metrics:
    """Return fill, age, spread and effective rank of the targets in the bank."""
    bank = banks.main
    embeddings = bank.targets[:MAX_ENTRIES]
    metrics = {"bank_filled": float(len(bank)), "bank_age": bank.mean_age()}
    if len(embeddings) > 1:
        metrics |= {"embedding_std": embedding_std(embeddings), "effective_rank": effective_rank(embeddings)}
    return metrics


def check_collapse(
    metrics: Metrics, train_state: TrainState, config: LoggingConfig, *, warned: bool, contrastive: bool = False
) -> bool:
    """Warn once, or raise CollapseError, if rank or spread have fallen too far. Return whether it has warned.

    Mean shift fails by losing rank while loss and purity look fine (`train_state` keeps the best rank so far). What
    helps differs for `contrastive` methods, which need no contrastive pretraining.
    """
    rank, std = metrics.get("effective_rank"), metrics.get("embedding_std")
    if rank is None or std is None:
        return warned
    train_state.best_rank = max(train_state.best_rank, rank)
    lost = rank < config.collapse_rank * train_state.best_rank
    if not lost and std >= config.collapse_std:
        return warned
    message = (
        f"step {train_state.step}: the embeddings are collapsing: effective rank {rank:.1f} "
        f"(best so far {train_state.best_rank:.1f}), spread {std:.2f} (1 is even). A lower learning rate, a higher "
        + ("ema_momentum or a larger batch help" if contrastive else MEAN_SHIFT_ADVICE)
    )
    if config.on_collapse == "stop":
        raise CollapseError(message)
    if not warned:
        logger.warning(message)
    return True
