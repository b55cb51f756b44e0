"""Write checkpoints in a thread, while training goes on.

What a thread writes is a copy on the CPU: a step after that changes nothing in it. Files and index are written by
`Checkpoints.save` as ever, so a kill at any moment leaves sound checkpoints. At most one is being written: the next one
waits for it. An error of the thread is raised in the training process, at its next step, save or end.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor
from typing_extensions import Self

from covid_cmsf.training.checkpoints import Checkpoints

logger = logging.getLogger(__name__)


class CheckpointWriter:
    """Save to `checkpoints`, in a thread unless `in_background` is False. Leaving the `with` block waits for it."""

    def __init__(self, checkpoints: Checkpoints, *, in_background: bool) -> None:
        self._checkpoints = checkpoints
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="checkpoints") if in_background else None
        self._writing: Future[Path] | None = None

    def save(self, values: Mapping[str, Any], *, epoch: int, batch: int, step: int, kept: bool, keep: int) -> None:
        """Copy the values and begin to write them; `Checkpoints.save` has the arguments."""
        self.wait()
        options: dict[str, Any] = {"epoch": epoch, "batch": batch, "step": step, "kept": kept, "keep": keep}
        if self._pool is None:
            self._checkpoints.save(values, **options)
        else:
            self._writing = self._pool.submit(self._checkpoints.save, copied(values), **options)

    def check(self) -> None:
        """Raise the error of a checkpoint that could not be written; do not wait for one that is being written."""
        if self._writing is not None and self._writing.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the checkpoint that is being written; raise its error."""
        if self._writing is not None:
            writing, self._writing = self._writing, None
            writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if error is None:
            self.wait()
        elif self._writing is not None and (second := self._writing.exception()) is not None:
            logger.error("the last checkpoint could not be written either: %s", second)  # the first error is raised


def copied(value: Any) -> Any:
    """Return nested values with copies of their tensors, on the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(copied(one) for one in value)
    return value
