"""The training loop: epochs of steps, with metrics, checkpoints and stop requests between them."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import torch
from torch import nn

from covid_cmsf.methods.base import TargetMethodConfig
from covid_cmsf.methods.contrastive import ContrastiveConfig
from covid_cmsf.training.batchnorm import resolve_groups
from covid_cmsf.training.build import TrainComponents
from covid_cmsf.training.checkpoint_writer import CheckpointWriter
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.failures import check_weights, save_failed_step
from covid_cmsf.training.monitor import MetricsWriter, ProgressDisplay, bank_metrics, check_collapse
from covid_cmsf.training.online_knn import OnlineKnn
from covid_cmsf.training.run_dir import config_to_dict
from covid_cmsf.training.schedules import ema_momentum, learning_rate
from covid_cmsf.training.signals import StopRequest
from covid_cmsf.training.step import StepConfig, StepResult, forward_backward, update
from covid_cmsf.training.train_state import TrainState, capture_state
from covid_cmsf.views.batch import Batch, copied_aside
from covid_cmsf.views.loader import ViewLoader

logger = logging.getLogger(__name__)


@dataclass
class Run:
    """Everything that the loop works with."""

    config: TrainConfig
    components: TrainComponents
    loader: ViewLoader
    train_state: TrainState
    checkpoints: Checkpoints
    writer: MetricsWriter | None  # only the first process has one
    dist: DistributedContext
    stop: StopRequest
    display: ProgressDisplay
    knn: OnlineKnn | None = None  # of the first process, where it was asked for

    def __post_init__(self) -> None:
        self.step_config = make_step_config(self.config, world_size=self.dist.world_size)
        self.checkpoint_writer = CheckpointWriter(
            self.checkpoints, in_background=self.config.runtime.background_checkpoints
        )
        self.timer = ThroughputTimer(device=self.dist.device)
        self.latest_metrics: dict[str, Any] = {}
        self.saved_at = self.counted_at = time.monotonic()
        self.warned = False

    @property
    def batches_per_epoch(self) -> int:
        """Batches per epoch that fill whole optimizer steps."""
        return usable_batches(self.loader, self.step_config)


class ThroughputTimer:
    """Samples per second of wall-clock time, and the fraction of it spent waiting for data, per line of metrics.

    Wall-clock time, because a GPU works on while Python goes on: no block of the loop contains the time of a backward
    pass, only the time from one line to the next does. A GPU waits for data from the end of what was launched before a
    batch to the batch's arrival, which two events on the GPU tell; Python also waits while the GPU still works.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, device: torch.device | None = None) -> None:
        self._clock, self._on_gpu = clock, device is not None and device.type == "cuda"
        self._start = clock()
        self._data, self._samples = 0.0, 0
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []  # of the GPU: from, to

    def count(self, samples: int) -> None:
        """Count samples that were trained on."""
        self._samples += samples

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block (saving a checkpoint)."""
        start = self._clock()
        yield
        self._start += self._clock() - start

    def timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the batches, counting the time that each is waited for."""
        while True:
            start, launched = self._clock(), self._mark()
            try:
                # A DataLoader draws a seed for its workers when an epoch starts, and again when one is resumed.
                with torch.random.fork_rng(devices=[]):
                    batch = next(batches)
            except StopIteration:
                return
            arrived = self._mark()
            if launched is None or arrived is None:
                self._data += self._clock() - start
            else:
                self._waits.append((launched, arrived))
            yield batch

    def read(self) -> dict[str, float]:
        """Return samples per second and the fraction of the time spent waiting for data, then reset."""
        if self._waits:
            self._waits[-1][1].synchronize()
        now = self._clock()
        total = max(now - self._start, 1e-9)
        self._data += sum(launched.elapsed_time(arrived) for launched, arrived in self._waits) / 1e3
        metrics = {"samples_per_s": self._samples / total, "data_fraction": self._data / total}
        self._start, self._data, self._samples, self._waits = now, 0.0, 0, []
        return metrics

    def _mark(self) -> torch.cuda.Event | None:
        if not self._on_gpu:
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def train(run: Run) -> Literal["finished", "stopped"]:
    """Train to the last epoch, or until a stop is requested."""
    config, train_state = run.config, run.train_state
    with run.checkpoint_writer, closing(run.loader):
        for epoch in range(train_state.epoch, config.schedule.epochs):
            left = run.batches_per_epoch - train_state.batch
            with closing(run.loader.epoch(epoch, first_batch=train_state.batch)) as batches:
                for batch in islice(run.timer.timed(copied_aside(batches, run.dist.device)), left):
                    stopped = train_batch(run, batch)
                    if stopped:
                        save_checkpoint(run)
                        return "stopped"
            train_state.epoch, train_state.batch = epoch + 1, 0
            cluster_(run.components, run.dist)
            run.display.log_epoch(epoch + 1, config.schedule.epochs, run.latest_metrics)
            every = config.runtime.keep_every_epochs
            save_checkpoint(run, kept=bool(every) and train_state.epoch % every == 0)
    return "finished"


def train_batch(run: Run, batch: Batch) -> bool:
    """Train on one batch; return True if the run must stop here. See `step.py` for what happens to a batch."""
    train_state, step_config, dist = run.train_state, run.step_config, run.dist
    last = (train_state.batch + 1) % step_config.accumulate == 0
    with skip_gradient_sync(run.components.online, not last):
        result = forward_backward(run.components, batch, step_config, dist)
        if not result.finite:
            save_failed_step(run.checkpoints.folder.parent, run.components, batch, result, capture_run(run), dist)
        if last and result.loss is not None:
            lr, momentum = lr_and_momentum(run.config, train_state, run.batches_per_epoch)
            update(run.components, step_config, lr=lr, momentum=momentum)
    run.timer.count(len(batch.labels) * dist.world_size)
    train_state.batch += 1
    train_state.step += 1
    if result.loss is not None:
        train_state.loss_sum += result.loss
        train_state.loss_count += 1
    now = time.monotonic()
    train_state.seconds += now - run.counted_at  # includes waiting for data and saving
    run.counted_at = now
    run.display.set_step(train_state.step)
    run.checkpoint_writer.check()
    log_metrics(run, result)
    if not last:
        return False
    late = time.monotonic() - run.saved_at > 60 * run.config.runtime.save_minutes
    asked, due = dist.all_reduce_sum(float(run.stop.asked), float(late and dist.is_main))
    if due and not asked:
        save_checkpoint(run)
    return asked > 0


def cluster_(components: TrainComponents, dist: DistributedContext) -> None:
    """Cluster all videos after an epoch, for methods that ask for it (CMSF-KM). One process does it for all."""
    method = components.method
    if components.memory is None or components.banks is None or method.memory_kind != "clusters":
        return
    if dist.is_main:
        components.memory.cluster_(
            method.num_clusters, iterations=method.kmeans_iterations, generator=components.generator
        )
    clusters, generator_state = dist.broadcast_object(
        (components.memory.clusters.cpu(), components.generator.get_state())
    )
    components.memory.clusters.copy_(clusters)
    components.generator.set_state(generator_state)
    components.banks.main.relabel_(components.memory.clusters)


def log_metrics(run: Run, result: StepResult) -> None:
    """Write a line of metrics every `logging.interval` steps and at the end of each epoch."""
    train_state, config = run.train_state, run.config
    end = train_state.batch == run.batches_per_epoch
    if train_state.step % config.logging.interval and not end:
        return
    lr, momentum = lr_and_momentum(config, replace(train_state, batch=train_state.batch - 1), run.batches_per_epoch)
    metrics: dict[str, Any] = {"epoch": train_state.epoch, "lr": lr}
    if train_state.loss_count:
        metrics["loss"] = train_state.loss_sum / train_state.loss_count
    train_state.loss_sum, train_state.loss_count = 0.0, 0
    if run.components.banks is not None:
        metrics |= {"ema_momentum": momentum, **bank_metrics(run.components.banks)}
    if result.embedded is not None:
        metrics |= run.components.method.compute_metrics(result.embedded, run.components.banks)
        if run.components.banks is not None:
            contrastive = isinstance(config.method, ContrastiveConfig)
            run.warned = check_collapse(
                metrics, train_state, config.logging, warned=run.warned, contrastive=contrastive
            )
    if end and run.knn is not None and run.knn.is_due(train_state.epoch + 1, config.schedule.epochs):
        with run.timer.paused():
            metrics |= run.knn.measure(run.dist.device)
    metrics |= {**run.timer.read(), "seconds": train_state.seconds, "num_replaced": run.loader.num_replaced}
    run.latest_metrics = metrics
    run.display.show_metrics(metrics)
    if run.writer is not None:
        run.writer.write(train_state.step, metrics)


def lr_and_momentum(config: TrainConfig, train_state: TrainState, batches_per_epoch: int) -> tuple[float, float]:
    """Return the learning rate and the EMA momentum of the current step."""
    done = train_state.epoch + train_state.batch / batches_per_epoch
    schedule, method = config.schedule, config.method
    lr = learning_rate(config.optimizer.lr, done, **schedule.model_dump())
    if not isinstance(method, TargetMethodConfig):
        return lr, 0.0
    return lr, ema_momentum(method.ema_momentum, done, epochs=schedule.epochs, schedule=method.ema_schedule)


def save_checkpoint(run: Run, *, kept: bool = False) -> None:
    """Save a checkpoint, or begin to. All processes must call it."""
    with run.timer.paused():
        check_weights(run.components.network, run.train_state.step)
        values, train_state = capture_run(run), run.train_state
        if run.dist.is_main:
            run.checkpoint_writer.save(
                values,
                epoch=train_state.epoch,
                batch=train_state.batch,
                step=train_state.step,
                kept=kept,
                keep=run.config.runtime.keep,
            )
        run.saved_at = time.monotonic()
        run.dist.barrier()


def capture_run(run: Run) -> dict[str, Any]:
    """Return everything that the next step depends on."""
    values = capture_state(run.components, run.train_state, config_to_dict(run.config), run.dist)
    counts = run.dist.gather_objects([run.loader.num_seen, run.loader.num_replaced])
    return {**values, "threads": torch.get_num_threads(), "read_counts": counts}


def make_step_config(config: TrainConfig, *, world_size: int = 1) -> StepConfig:
    """Return the options of a step from the run's configuration and the number of processes."""
    groups = resolve_groups(config.batch_norm, world_size=world_size)
    return StepConfig(
        modality=config.modality,
        precision=config.precision,
        batch_norm=config.batch_norm.model_copy(update={"groups": groups}),
        bank_warmup=config.method.warmup_entries if isinstance(config.method, TargetMethodConfig) else 0,
        accumulate=config.optimizer.accumulate,
        clip_norm=config.optimizer.clip_norm,
    )


def usable_batches(loader: ViewLoader, step_config: StepConfig) -> int:
    """Return the number of batches per epoch that fill whole optimizer steps."""
    whole = loader.num_batches // step_config.accumulate * step_config.accumulate
    if whole == 0:
        raise ValueError(
            f"an epoch has {loader.num_batches} batches, fewer than optimizer.accumulate = {step_config.accumulate}"
        )
    return whole


def skip_gradient_sync(online: nn.Module, wanted: bool) -> Any:
    """Return a context without gradient exchange, for all but the last of the accumulated batches."""
    if wanted and isinstance(online, nn.parallel.DistributedDataParallel):
        return online.no_sync()
    return nullcontext()
