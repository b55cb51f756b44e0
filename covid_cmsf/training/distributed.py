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

from covid_cmsf.clips.shared_memory import LocalProcesses
from covid_cmsf.devices import choose_device, send


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

    def exchange(self, local: Tensor, order: Tensor) -> Tensor:
        """Return this process's (b, ...) of all processes' samples in the order (B,), a permutation on the CPU.

        Each process receives its own samples only. Of n processes and for float32, that is 4/n of the bytes that it
        would receive if all samples were gathered as uint8: fewer only if n is above 4.
        """
        size = len(local)
        if self.world_size == 1:
            return local.detach()[send(order, local.device)]
        wanted = order.view(self.world_size, size)  # by receiver
        holders = wanted // size
        sent = torch.cat([row[holder == self.rank] for row, holder in zip(wanted, holders, strict=True)])
        outgoing = local.detach()[send(sent - self.rank * size, local.device)].contiguous()
        incoming = torch.empty_like(outgoing)
        own = holders[self.rank]
        dist.all_to_all_single(
            incoming,
            outgoing,
            output_split_sizes=torch.bincount(own, minlength=self.world_size).tolist(),
            input_split_sizes=(holders == self.rank).sum(1).tolist(),
        )
        # They come sorted by sender: put each where it belongs.
        places = torch.argsort(torch.argsort(own, stable=True))
        return incoming[send(places, local.device)]

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

    def local_processes(self) -> LocalProcesses:
        """Return the processes of this machine, as torchrun counts them."""
        if self.world_size == 1:
            return LocalProcesses()
        machine, rank = os.environ.get("GROUP_RANK", "0"), int(os.environ.get("LOCAL_RANK", str(self.rank)))

        def gather(value: Any) -> list[Any]:
            here = [(one[1], one[2]) for one in self.gather_objects((machine, rank, value)) if one[0] == machine]
            return [one for _, one in sorted(here, key=lambda pair: pair[0])]

        return LocalProcesses(rank, int(os.environ.get("LOCAL_WORLD_SIZE", str(self.world_size))), gather)

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
    try:
        yield DistributedContext(rank, world_size, chosen)
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise RuntimeError(
            f"process {rank} lost another one, which was killed, failed, or whose machine is gone: its own log says "
            f"more. The same command resumes from the last checkpoint ({reason})"
        ) from error
