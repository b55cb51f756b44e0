"""Devices by name."""

import torch


def choose_device(name: str, *, local_rank: int = 0) -> torch.device:
    """`auto` is a GPU where there is one; each process of a machine takes its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"unknown device {name!r}; for example auto, cpu, cuda, cuda:1") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device {name!r}: this PyTorch sees no GPU; `covid-cmsf doctor` tells more")
    return torch.device("cuda", local_rank) if device.type == "cuda" and device.index is None else device
