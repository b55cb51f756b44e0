"""Choose a torch device, send small tensors to it, fetch results, and say what to change when its memory is full."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class GpuMemoryError(RuntimeError):
    """Something does not fit into the memory of the GPU."""


def choose_device(name: str, *, local_rank: int = 0) -> torch.device:
    """Return the device called `name`; `auto` is CUDA if available, else the CPU.

    `cuda` without an index becomes `cuda:<local_rank>`, so that each process of a machine has its own GPU.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; for example auto, cpu, cuda, cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: PyTorch finds no GPU; use cpu, or see `covid-cmsf doctor`")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"device {name!r}: there are {torch.cuda.device_count()} GPUs, counted from 0")
    return torch.device("cuda", local_rank) if device.type == "cuda" and device.index is None else device


def choose_devices(name: str, num_processes: int | None = None) -> list[torch.device]:
    """Return a device per process; default: all GPUs if `name` is auto or cuda, else this one device once.

    More processes than GPUs share them. `cuda:1` and `cpu` are the same device in every process.
    """
    device = choose_device(name)
    if device.type != "cuda" or name not in ("auto", "cuda"):
        return [device] * (num_processes or 1)
    count = torch.cuda.device_count()
    return [torch.device("cuda", number % count) for number in range(num_processes or count)]


def move(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy to a device, without waiting for a copy from the CPU: from a GPU, the values would not be there yet."""
    return tensor.to(device, non_blocking=tensor.device.type == "cpu")


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device without waiting for it: a copy from pageable memory would wait for a GPU."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def fetch(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the CPU; the function that is returned waits for it, not for what is launched later.

    The copy is queued where it is asked for: behind the kernels of a later batch it would wait for those as well.
    """
    if tensor.device.type != "cuda":
        return tensor.cpu
    pinned, arrived = tensor.to("cpu", non_blocking=True), torch.cuda.Event()
    arrived.record(torch.cuda.current_stream(tensor.device))

    def wait() -> Tensor:
        arrived.synchronize()
        return pinned.clone()  # pinned memory is scarce, and used again for the next

    return wait


@contextmanager
def explained_memory(advise: Callable[[], str]) -> Iterator[None]:
    """Turn PyTorch's out-of-memory error into one line with what was to fit there and which settings need less."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise GpuMemoryError(f"out of GPU memory {advise()}") from error
