"""The processes of a run: one, or several started by torchrun, on one machine or many.

Every process holds the same bank: embeddings are gathered in rank order before they are pushed.
"""

# b samples of this process, B of all processes

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from covid_cmsf.devices import choose_device


@dataclass(frozen=True)
class DistributedContext:
    """Rank, world size and device of this process, with the collectives that training needs."""

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and logs."""
        return self.rank == 0

    def gather(self, local: Tensor) -> Tensor:
        """Gather (b, ...) of each process to (B, ...) of all, in every process. Carries no gradient."""
        if self.world_size == 1:
            return local.detach()
        chunks = [torch.empty_like(local) for _ in range(self.world_size)]
        dist.all_gather(chunks, local.detach().contiguous())
        return torch.cat(chunks)

    def local_slice(self, gathered: int) -> slice:
        """Return the slice of this process's samples among `gathered` ones."""
        size = gathered // self.world_size
        return slice(self.rank * size, (self.rank + 1) * size)

    def all_reduce_sum(self, *values: Tensor | float) -> list[float]:
        """Return the sum of each value over all processes. Waits for the GPU once, if there are tensors."""
        tensors = [value for value in values if isinstance(value, Tensor)]
        if not tensors and self.world_size == 1:  # what is known here does not have to be asked of a GPU
            return [float(value) for value in values]
        if tensors:
            numbers = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values])
        else:
            numbers = torch.tensor(values, dtype=torch.float64, device=self.device)
        if self.world_size > 1:
            dist.all_reduce(numbers)
        return numbers.tolist()

    def gather_objects(self, value: Any) -> list[Any]:
        """Return one picklable value per process, in rank order."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values

    def broadcast_object(self, value: Any) -> Any:
        """Return the first process's value, in every process. It must be picklable."""
        if self.world_size == 1:
            return value
        values = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.world_size > 1:
            dist.barrier()


@contextmanager
def distributed_context(device: str, *, timeout_minutes: float = 60.0) -> Iterator[DistributedContext]:
    """Join the process group that torchrun describes in the environment; without torchrun, this process alone."""
    world_size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    chosen = choose_device(device, local_rank=int(os.environ.get("LOCAL_RANK", "0")))
    if chosen.type == "cuda":  # also for one process on cuda:1: some kernels and libraries use the current device
        torch.cuda.set_device(chosen)
    if world_size == 1:
        yield DistributedContext(0, 1, chosen)
        return
    if not dist.is_initialized():  # torchrun's store serves one group: a second run reuses it
        is_cuda = chosen.type == "cuda"
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            timeout=timedelta(minutes=timeout_minutes),
            device_id=chosen if is_cuda else None,
        )
        atexit.register(dist.destroy_process_group)
    yield DistributedContext(rank, world_size, chosen)
