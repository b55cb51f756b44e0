"""Several processes that train one classifier together, on one machine.

Each computes the features of its own samples; the head then sees those of all, in every process. So a head has the
batch norm statistics, the dropout and the loss of the whole batch, as in one process. Only the encoder's batch norm has
statistics of each process's own samples, as in training.
"""

# b samples of a process, B of all

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from covid_cmsf.evaluation.features.processes import run_on_devices

T = TypeVar("T")
TIMEOUT = timedelta(days=1)  # the process that started them notices when one is gone


@dataclass(frozen=True)
class ProcessGroup:
    """Rank and size; one process without any other by default."""

    rank: int = 0
    size: int = 1
    objects: Any = None  # a group of gloo: what is no tensor of a GPU does not go through GPUs

    @property
    def is_main(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    def gather(self, own: Tensor) -> Tensor:
        """Return (B, ...) of all processes' (b, ...), in the order of ranks; gradients reach this process's own."""
        if self.size == 1:
            return own
        chunks = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(chunks, own.detach().contiguous())
        chunks[self.rank] = own
        return torch.cat(chunks)

    def sum_gradients_(self, shared: Iterable[nn.Parameter], own: Iterable[nn.Parameter]) -> None:
        """Make the gradients those of the whole batch, the same bits in every process.

        `own` parameters (the encoder's) have the gradients of this process's samples, which are summed; `shared` ones
        (the head's) have those of all samples in every process already, up to rounding, and are averaged.
        """
        if self.size == 1:
            return
        weighted = [(one, 1.0) for one in own] + [(one, 1 / self.size) for one in shared]
        trained = [(one, weight) for one, weight in weighted if one.requires_grad]
        for one, _ in trained:
            one.grad = torch.zeros_like(one) if one.grad is None else one.grad
        flat = torch.cat([weight * one.grad.flatten() for one, weight in trained if one.grad is not None])
        dist.all_reduce(flat)
        for (one, _), summed in zip(trained, flat.split([one.numel() for one, _ in trained]), strict=True):
            assert one.grad is not None
            one.grad.copy_(summed.view_as(one))

    def copy_buffers_(self, module: nn.Module) -> None:
        """Give every process the first one's buffers: the running statistics of batch norm."""
        if self.size > 1:
            for buffer in module.buffers():
                dist.broadcast(buffer, src=0)

    def collect(self, value: T) -> list[T]:
        """Return one picklable value per process in the first one, in the order of ranks; an empty list elsewhere."""
        if self.size == 1:
            return [value]
        values: list[Any] | None = [None] * self.size if self.is_main else None
        dist.gather_object(value, values, dst=0, group=self.objects)
        return values or []

    def share(self, value: T) -> T:
        """Return the first process's value, in every process; all wait for it."""
        if self.size == 1:
            return value
        values = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0, group=self.objects)
        return values[0]  # type: ignore[return-value]

    def part(self, count: int) -> range:
        """Return which of `count` items are this process's."""
        return range(self.rank, count, self.size)


def num_sharing(batch_size: int, num_devices: int) -> int:
    """Return how many of the devices can share a batch equally."""
    return max(count for count in range(1, num_devices + 1) if batch_size % count == 0)


Work = Callable[[ProcessGroup, torch.device, Callable[[], None]], Any]


def run_in_group(work: Work, devices: Sequence[torch.device], *, on_epoch: Callable[[], None]) -> Any:
    """Call `work` in a process per device, or here for one device; return the first one's result.

    RuntimeError if one of them fails; the others are then ended. `work` must be picklable and on the CPU, and the
    result without tensors, whose memory would be that of a process that has ended.
    """
    if len(devices) == 1:
        return work(ProcessGroup(), devices[0], on_epoch)
    with tempfile.TemporaryDirectory() as folder:
        member = _Member(work, folder, len(devices))
        (result,) = run_on_devices(member, range(len(devices)), devices, on_video=on_epoch)
        return result


@dataclass(frozen=True)
class _Member:
    work: Work
    folder: str
    size: int

    def __call__(self, ranks: Sequence[int], device: torch.device, on_epoch: Callable[[], None]) -> Any:
        is_cuda, (rank,) = device.type == "cuda", ranks
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            init_method=f"file://{self.folder}/rendezvous",
            rank=rank,
            world_size=self.size,
            timeout=TIMEOUT,
            device_id=device if is_cuda else None,
        )
        group = ProcessGroup(rank, self.size, objects=dist.new_group(backend="gloo", timeout=TIMEOUT))
        result = self.work(group, device, on_epoch if group.is_main else lambda: None)
        dist.destroy_process_group()
        return result if group.is_main else None
