"""The loop: epochs of steps, and what happens between them: metrics, checkpoints, being asked to stop."""

import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import torch
from torch import nn

from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.display import Display
from covid_cmsf.training.failure import check_weights, keep_failed_step
from covid_cmsf.training.health import bank_facts, check_collapse
from covid_cmsf.training.method_settings import CmsfKmSettings, MethodSettings, WithTarget
from covid_cmsf.training.metrics import Metrics
from covid_cmsf.training.parts import Parts
from covid_cmsf.training.processes import Processes
from covid_cmsf.training.progress import Progress, capture
from covid_cmsf.training.run_folder import plain
from covid_cmsf.training.schedules import ema_momentum, learning_rate
from covid_cmsf.training.settings import TrainSettings
from covid_cmsf.training.signals import StopRequest
from covid_cmsf.training.step import How, Outcome, forward_backward, update
from covid_cmsf.views.batch import Batch
from covid_cmsf.views.loader import ViewLoader

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """A run under way."""

    settings: TrainSettings
    parts: Parts
    loader: ViewLoader
    progress: Progress
    checkpoints: Checkpoints
    metrics: Metrics | None  # only the first process has one
    processes: Processes
    stop: StopRequest
    display: Display

    def __post_init__(self) -> None:
        self.how = how_of(self.settings)
        self.clock = Clock()
        self.last_facts: dict[str, Any] = {}
        self.saved_at = self.counted_at = time.monotonic()
        self.warned = False

    @property
    def batches_per_epoch(self) -> int:
        """A whole number of optimizer steps."""
        return whole_steps(self.loader, self.how)


class Clock:
    """Time waiting for data and time working, since the last line of metrics."""

    def __init__(self) -> None:
        self.data = self.work = 0.0
        self.examples = 0

    @contextmanager
    def working(self, examples: int) -> Iterator[None]:
        """Counts the block as work on so many examples."""
        start = time.monotonic()
        yield
        self.work += time.monotonic() - start
        self.examples += examples

    def waited(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """The batches, counting the time until each is there."""
        while True:
            start = time.monotonic()
            try:
                # A data loader draws a seed for its workers at the start of an epoch, and once more in a continued one.
                with torch.random.fork_rng(devices=[]):
                    batch = next(batches)
            except StopIteration:
                return
            self.data += time.monotonic() - start
            yield batch

    def read(self) -> dict[str, float]:
        """Examples a second, and the share of the time spent waiting for data; starts anew."""
        total = max(self.data + self.work, 1e-9)
        facts = {"examples_per_s": self.examples / total, "data_share": self.data / total}
        self.data, self.work, self.examples = 0.0, 0.0, 0
        return facts


def train(run: Run) -> Literal["finished", "stopped"]:
    """Trains from where the run is to its end, or until it is asked to stop."""
    settings, progress = run.settings, run.progress
    for epoch in range(progress.epoch, settings.schedule.epochs):
        left = run.batches_per_epoch - progress.batch  # the loader may have more: they make no whole step
        with closing(run.loader.epoch(epoch, first_batch=progress.batch)) as batches:
            for batch in islice(run.clock.waited(batches), left):
                stopped = one_batch(run, batch)
                if stopped:
                    save(run)
                    return "stopped"
        progress.epoch, progress.batch = epoch + 1, 0
        cluster_(run.parts, settings.method, run.processes)
        run.display.epoch(epoch + 1, settings.schedule.epochs, run.last_facts)
        every = settings.runtime.keep_every_epochs
        save(run, kept=bool(every) and progress.epoch % every == 0)
    return "finished"


def one_batch(run: Run, batch: Batch) -> bool:
    """Targets, push, search, loss, and when enough batches are gathered step and EMA. True: stop here."""
    progress, how, processes = run.progress, run.how, run.processes
    last = (progress.batch + 1) % how.accumulate == 0
    with run.clock.working(len(batch.labels) * processes.count), unsynchronized(run.parts.online, not last):
        outcome = forward_backward(run.parts, batch, how, processes)
        if not outcome.finite:
            keep_failed_step(run.checkpoints.folder.parent, run.parts, batch, outcome, capture_of(run), processes)
        if last and outcome.loss is not None:
            rate, momentum = rates(run.settings, progress, run.batches_per_epoch)
            update(run.parts, how, rate=rate, momentum=momentum)
    progress.batch += 1
    progress.step += 1
    if outcome.loss is not None:
        progress.loss_sum += outcome.loss
        progress.loss_count += 1
    now = time.monotonic()
    progress.seconds += now - run.counted_at  # with waiting for data and saving
    run.counted_at = now
    run.display.step(progress.step)
    measure(run, outcome)
    if not last:
        return False
    late = time.monotonic() - run.saved_at > 60 * run.settings.runtime.save_minutes
    asked, due = processes.total(float(run.stop.asked), float(late and processes.first))
    if due and not asked:
        save(run)
    return asked > 0


def cluster_(parts: Parts, method: MethodSettings, processes: Processes) -> None:
    """CMSF-KM: new clusters after every epoch, in the memory and in the bank. One process finds them for all."""
    if parts.memory is None or parts.banks is None or not isinstance(method, CmsfKmSettings):
        return
    if processes.first:
        parts.memory.cluster_(method.num_clusters, iterations=method.iterations, generator=parts.generator)
    clusters, draws = processes.gather_objects((parts.memory.clusters.cpu(), parts.generator.get_state()))[0]
    parts.memory.clusters.copy_(clusters)
    parts.generator.set_state(draws)
    parts.banks.everyone.relabel_(parts.memory.clusters)


def measure(run: Run, outcome: Outcome) -> None:
    """A line of metrics every few steps, and at the end of each epoch."""
    progress, settings = run.progress, run.settings
    end = progress.batch == run.batches_per_epoch
    if progress.step % settings.watch.every and not end:
        return
    rate, momentum = rates(settings, replace(progress, batch=progress.batch - 1), run.batches_per_epoch)
    facts: dict[str, Any] = {"epoch": progress.epoch, "lr": rate}
    if progress.loss_count:
        facts["loss"] = progress.loss_sum / progress.loss_count
    progress.loss_sum, progress.loss_count = 0.0, 0
    if run.parts.banks is not None:
        facts |= {"ema_momentum": momentum, **bank_facts(run.parts.banks)}
    if outcome.embedded is not None:
        facts |= run.parts.method.watch(outcome.embedded, run.parts.banks)
        if run.parts.banks is not None:
            run.warned = check_collapse(facts, progress, settings.watch, warned=run.warned)
    facts |= {**run.clock.read(), "seconds": progress.seconds, "num_replaced": run.loader.num_replaced}
    run.last_facts = facts
    run.display.facts(facts)
    if run.metrics is not None:
        run.metrics.write(progress.step, facts)


def rates(settings: TrainSettings, progress: Progress, batches_per_epoch: int) -> tuple[float, float]:
    """Learning rate and EMA momentum of the current step."""
    done = progress.epoch + progress.batch / batches_per_epoch
    schedule, method = settings.schedule, settings.method
    rate = learning_rate(settings.optimizer.lr, done, **schedule.model_dump())
    if not isinstance(method, WithTarget):
        return rate, 0.0
    return rate, ema_momentum(method.ema_momentum, done, epochs=schedule.epochs, schedule=method.ema_schedule)


def save(run: Run, *, kept: bool = False) -> None:
    """A checkpoint of the run as it is. All processes must call it."""
    check_weights(run.parts.network, run.progress.step)
    values, progress = capture_of(run), run.progress
    if run.processes.first:
        run.checkpoints.save(
            values,
            epoch=progress.epoch,
            batch=progress.batch,
            step=progress.step,
            kept=kept,
            keep=run.settings.runtime.keep,
        )
    run.saved_at = time.monotonic()
    run.processes.wait()


def capture_of(run: Run) -> dict[str, Any]:
    """Everything the next step depends on."""
    return capture(run.parts, run.progress, plain(run.settings), run.processes)


def how_of(settings: TrainSettings) -> How:
    """What a step needs to know of the settings."""
    start_rows = 0
    if isinstance(settings.method, WithTarget):
        chosen = settings.method.start_rows
        start_rows = settings.method.bank_rows if chosen == "full" else min(chosen, settings.method.bank_rows)
    return How(
        modality=settings.modality,
        precision=settings.precision,
        batch_norm=settings.batch_norm,
        start_rows=start_rows,
        accumulate=settings.optimizer.accumulate,
        clip_norm=settings.optimizer.clip_norm,
    )


def whole_steps(loader: ViewLoader, how: How) -> int:
    """Batches of an epoch that make whole optimizer steps."""
    whole = loader.num_batches // how.accumulate * how.accumulate
    if whole == 0:
        raise ValueError(f"an epoch has {loader.num_batches} batches, and optimizer.accumulate wants {how.accumulate}")
    return whole


def unsynchronized(online: nn.Module, wanted: bool) -> Any:
    """Between accumulated batches processes need not exchange gradients."""
    if wanted and isinstance(online, nn.parallel.DistributedDataParallel):
        return online.no_sync()
    return nullcontext()
