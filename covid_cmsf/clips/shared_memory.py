"""Memory that all training processes of a machine, and their data loading workers, map: written by each, kept once.

It is a file without a name (memfd) of the first process, which the others open through /proc. So nothing is left behind
when all processes are gone, whatever ended them, and it does not count as /dev/shm.
"""

import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def _alone(value: Any) -> list[Any]:
    return [value]


@dataclass(frozen=True)
class LocalProcesses:
    """The training processes of this machine. `gather` returns the values of all of them, in the order of ranks."""

    rank: int = 0
    count: int = 1
    gather: Callable[[Any], list[Any]] = _alone


class MachineMemory:
    """A block of bytes; pages that are never written take no physical memory.

    Processes that unpickle it map the same block, as long as the process that made it has it.
    """

    def __init__(self, num_bytes: int, local: LocalProcesses) -> None:
        self._num_bytes, path = num_bytes, ""
        if local.rank == 0:
            if not hasattr(os, "memfd_create"):
                raise ValueError("runtime.cache_gb of several processes needs Linux: use runtime.cache_dir")
            descriptor = os.memfd_create("covid-cmsf-clips")
            weakref.finalize(self, os.close, descriptor)
            os.ftruncate(descriptor, num_bytes)
            path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._path = local.gather(path)[0]
        self.bytes = self._map()

    def __getstate__(self) -> dict[str, Any]:
        return {"_num_bytes": self._num_bytes, "_path": self._path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.bytes = self._map()

    def _map(self) -> Tensor:
        """Return the block, uint8 (num_bytes,)."""
        try:
            return torch.from_file(self._path, shared=True, size=self._num_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise RuntimeError(
                f"this process cannot open the decoded clips of another one ({reason}): use runtime.cache_dir instead "
                "of runtime.cache_gb"
            ) from error
