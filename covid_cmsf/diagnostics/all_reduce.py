"""Time the all-reduce between GPUs: the gradients of a network, summed over all of them, as after every step."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from covid_cmsf.evaluation.features.processes import run_on_devices

REPEATS = 10
TIMEOUT = timedelta(minutes=2)


@dataclass(frozen=True)
class AllReduceTiming:
    """Seconds of the fastest all-reduce, and whether every process has the sum."""

    seconds: float
    correct: bool


@dataclass(frozen=True)
class AllReduceWork:
    """What each process does; the first one returns the timing."""

    folder: str
    num_processes: int
    num_values: int

    def __call__(
        self, ranks: Sequence[int], device: torch.device, on_video: Callable[[], None]
    ) -> AllReduceTiming | None:
        """Sum `num_values` floats over all processes, and compare with what the sum must be."""
        is_cuda, (rank,) = device.type == "cuda", ranks
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            init_method=f"file://{self.folder}/rendezvous",
            rank=rank,
            world_size=self.num_processes,
            timeout=TIMEOUT,
            device_id=device if is_cuda else None,
        )
        times = []
        for _ in range(REPEATS + 1):  # the first one connects
            values = torch.full((self.num_values,), rank + 1.0, device=device)
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(values)
            correct = (values == sum(range(1, self.num_processes + 1))).all()  # waits for the GPU
            right = torch.tensor(float(correct.item()), device=device)
            times.append(time.perf_counter() - start)
            dist.all_reduce(right, op=dist.ReduceOp.MIN)
        timing = AllReduceTiming(min(times[1:]), bool(right.item()))
        dist.destroy_process_group()
        return timing if rank == 0 else None


def time_all_reduce(devices: Sequence[torch.device], *, num_values: int) -> AllReduceTiming:
    """Return the timing of an all-reduce of `num_values` floats, a process per device (NCCL, or gloo on CPUs).

    RuntimeError if a process fails or waits in vain for the others.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = AllReduceWork(folder, len(devices), num_values)
        (timing,) = run_on_devices(work, range(len(devices)), devices, on_video=lambda: None)
        assert isinstance(timing, AllReduceTiming)
        return timing
