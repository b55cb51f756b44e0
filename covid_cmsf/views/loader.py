"""Batches of views: the sampler of an epoch's order, split between processes, and the data loader."""

import multiprocessing
import multiprocessing.util
import os
import signal
from collections.abc import Generator, Iterator, Sized
from itertools import pairwise
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from covid_cmsf.views.batch import Batch
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from covid_cmsf.views.merge import merge_batches

MAX_REPLACED_FRACTION = 0.01  # a run stops if more clips than this can't be read
EXIT_SIGNAL = signal.SIGUSR2  # schedulers send others: the data loading process sends it to its workers
MIN_CLIPS_SEEN = 200  # clips read before that fraction is checked
PREFETCH = 2  # batches that workers prepare in advance, each its part of them


class EpochSampler(Sampler[list[SampleKey]]):
    """Batches of sample keys. The order depends on seed and epoch only, not on the number of processes or workers.

    `batch_size` is per process: all processes together see the batches that one process with a batch size of
    `batch_size * world_size` would see. `start_at` starts in the middle of an epoch. An iteration has the batches of
    one epoch, or, with `num_epochs`, of all epochs from there to that number, so that a data loader may prepare the
    next one ahead. With `multiple`, only as many batches of an epoch are used as are a multiple of it.
    """

    def __init__(
        self,
        data: Sized,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world_size: int = 1,
        repeat: int = 1,
        num_epochs: int | None = None,
        multiple: int = 1,
    ) -> None:
        if batch_size < 1 or repeat < 1:
            raise ValueError(f"batch size ({batch_size}) and repeat ({repeat}) must be at least 1")
        self._num_videos, self._num_keys = len(data), len(data) * repeat
        self._batch_size, self._seed = batch_size, seed
        self._rank, self._world_size = rank, world_size
        self._num_epochs, self._multiple = num_epochs, multiple
        self.epoch, self._first_batch, self._stopped = 0, 0, False
        if self.num_batches == 0:
            raise ValueError(
                f"{self._num_keys} videos do not fill one batch of {batch_size * world_size}; "
                "use a smaller batch size (--batch-size), or repeat the data set (repeat=2)"
            )

    @property
    def num_batches(self) -> int:
        """Batches per epoch; an incomplete last one is dropped."""
        return self._num_keys // (self._batch_size * self._world_size)

    @property
    def num_used_batches(self) -> int:
        """Batches of an epoch that an iteration has: a multiple of `multiple`."""
        return self.num_batches // self._multiple * self._multiple

    def start_at(self, epoch: int, batch: int = 0) -> None:
        """Make the next iteration that of `epoch`, from batch `batch` on."""
        self.epoch, self._first_batch, self._stopped = epoch, batch, False

    def stop(self) -> None:
        """End the running iteration."""
        self._stopped = True

    def goes_on_after(self, epoch: int) -> bool:
        """Whether an iteration has batches of later epochs."""
        return epoch + 1 < (self._num_epochs or 0)

    def __len__(self) -> int:
        return self.num_used_batches * (self._end() - self.epoch) - self._first_batch

    def _end(self) -> int:
        """Return the epoch at which an iteration ends."""
        return max(self.epoch + 1, self._num_epochs or 0)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        first, self._first_batch = self._first_batch, 0
        for epoch in range(self.epoch, self._end()):
            rng = np.random.default_rng([self._seed, epoch])
            order = rng.permutation(self._num_keys) % self._num_videos
            for batch in range(first, self.num_used_batches):
                if self._stopped:
                    return
                start = (batch * self._world_size + self._rank) * self._batch_size
                positions = range(start, start + self._batch_size)
                yield [SampleKey(epoch, position, int(order[position])) for position in positions]
            first = 0


class PartSampler(Sampler[list[SampleKey]]):
    """The batches of a sampler, each in `num_parts` parts that differ by one sample at most, in its order."""

    def __init__(self, batches: EpochSampler, num_parts: int) -> None:
        self._batches, self._num_parts = batches, num_parts

    def __len__(self) -> int:
        return self._num_parts * len(self._batches)

    def __iter__(self) -> Iterator[list[SampleKey]]:
        for keys in self._batches:
            cuts = [number * len(keys) // self._num_parts for number in range(self._num_parts + 1)]
            yield from (keys[start:end] for start, end in pairwise(cuts))


class ViewLoader:
    """Iterate over batches of views, epoch by epoch; RuntimeError if too many clips can't be read.

    Args:
        data: the videos.
        batch_size: samples per batch and process. An incomplete last batch is dropped.
        num_workers: worker processes that decode and augment, together on each batch; 0: in this process.
        rank: rank of this process.
        world_size: number of processes.
        repeat: samples per video and epoch, each with other views.
        pin_memory: copy batches to page-locked memory, for GPUs.
        prefetch: batches that the workers prepare in advance.
        num_epochs: epochs of the run: while the last batches of one are trained on, workers prepare the first of the
            next. None: an epoch's preparation begins with it. `close` when they are not all wanted.
        multiple: use only as many batches of an epoch as are a multiple of it.

    Example:
        >>> data = cc.ViewDataset(cc.open_clips("clips/ucf101"), modalities=("rgb",), length=4, size=32)
        >>> for batch in cc.ViewLoader(data, batch_size=12).epoch(0):
        ...     print(batch.online["rgb"].shape)
        torch.Size([12, 3, 4, 32, 32])
        torch.Size([12, 3, 4, 32, 32])
    """

    def __init__(
        self,
        data: ViewDataset,
        *,
        batch_size: int,
        num_workers: int = 0,
        rank: int = 0,
        world_size: int = 1,
        repeat: int = 1,
        pin_memory: bool = False,
        prefetch: int = PREFETCH,
        num_epochs: int | None = None,
        multiple: int = 1,
    ) -> None:
        self.sampler = EpochSampler(
            data,
            batch_size=batch_size,
            seed=data.seed,
            rank=rank,
            world_size=world_size,
            repeat=repeat,
            num_epochs=num_epochs,
            multiple=multiple,
        )
        self._running: Iterator[Batch] | None = None
        self._next = (0, 0)  # epoch and batch that the running iteration yields next
        self.num_parts, self._pin_memory = max(1, min(num_workers, batch_size)), pin_memory
        self.num_seen, self.num_replaced, self._last_read_error = 0, 0, ""
        worker_options: dict[str, Any] = {}
        if num_workers:
            worker_options = {
                "persistent_workers": True,
                # Workers beyond the samples of a batch work on the next ones.
                "prefetch_factor": prefetch,
                "multiprocessing_context": worker_start_method(num_workers),
            }
        self._loader: DataLoader[Any] = DataLoader(
            data,
            batch_sampler=PartSampler(self.sampler, self.num_parts),
            num_workers=num_workers,
            collate_fn=data.collate_fn(),
            pin_memory=pin_memory,
            worker_init_fn=init_worker,
            **worker_options,
        )

    @property
    def num_batches(self) -> int:
        """Batches per epoch."""
        return self.sampler.num_batches

    def epoch(self, epoch: int, *, first_batch: int = 0) -> Generator[Batch, None, None]:
        """Yield the batches of an epoch, from `first_batch` on (to resume). Close the generator to stop early."""
        if self._running is None or self._next != (epoch, first_batch):
            self.close()
            self.sampler.start_at(epoch, first_batch)
            self._running, self._next = iter(self._loader), (epoch, first_batch)
        running, last = self._running, self.sampler.num_used_batches
        try:
            for number in range(first_batch, last):
                parts = [next(running) for _ in range(self.num_parts)]
                batch = self._count_replaced(merge_batches(parts, pin=self._pin_memory))
                del parts
                self._next = (epoch, number + 1) if number + 1 < last else (epoch + 1, 0)
                yield batch
        finally:
            if self._next[0] == epoch or not self.sampler.goes_on_after(epoch):
                self.close()

    def close(self) -> None:
        """Drop what was prepared ahead; the next epoch starts anew."""
        if self._running is None:
            return
        batches, self._running = self._running, None
        # Workers that are killed in the middle of a batch print errors: let them finish the prefetched batches.
        self.sampler.stop()
        for _ in batches:
            pass

    def _count_replaced(self, batch: Batch) -> Batch:
        self.num_seen += len(batch.labels)
        self.num_replaced += batch.num_replaced
        self._last_read_error = batch.read_error or self._last_read_error
        if self.num_seen >= MIN_CLIPS_SEEN and self.num_replaced > MAX_REPLACED_FRACTION * self.num_seen:
            raise RuntimeError(
                f"{self.num_replaced} of {self.num_seen} clips could not be read; the last: {self._last_read_error}. "
                "`covid-cmsf clips check` finds all damaged files"
            )
        return batch


def worker_start_method(num_workers: int) -> str | None:
    """Return how worker processes start, None without any; call it before they do.

    Workers that send tensors need a temporary folder (`pymp-*`) for a socket. One that is killed at the end does not
    remove its own; processes that start after this one has a folder use that, and this one removes it when it exits.
    Workers that are alive then (of a loader in a script's own variables) would ignore the SIGTERM that multiprocessing
    sends, and be waited for without end, so they are told to exit before.
    """
    if not num_workers:
        return None
    multiprocessing.util.get_temp_dir()
    multiprocessing.util.Finalize(None, _end_workers, exitpriority=100)
    return "spawn"


def _end_workers() -> None:
    for process in multiprocessing.active_children():
        if process.daemon and process.pid is not None:
            os.kill(process.pid, EXIT_SIGNAL)


def init_worker(worker: int) -> None:
    """Set up a worker process: one thread (there are as many workers as cores), and ignore signals.

    Job schedulers and Ctrl-C signal all processes at once: workers must live until the training process has finished
    the step and saved. A second SIGTERM comes from that process, if a worker does not exit on request, and
    `EXIT_SIGNAL` when that process exits.
    """
    torch.set_num_threads(1)
    for one in (signal.SIGINT, signal.SIGUSR1):
        signal.signal(one, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _restore_default_sigterm)
    signal.signal(EXIT_SIGNAL, lambda number, frame: os._exit(0))


def _restore_default_sigterm(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
