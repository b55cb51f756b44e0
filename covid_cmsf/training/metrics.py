"""The numbers of a run: one JSON object a line in metrics.jsonl, and the same for TensorBoard."""

import json
from pathlib import Path
from typing import Any

from covid_cmsf.atomic import write_text_atomic


class Metrics:
    """Appends lines; continuing after `step` first drops what a killed run wrote beyond it."""

    def __init__(self, folder: Path, *, step: int, tensorboard: bool) -> None:
        self.path = folder / "metrics.jsonl"
        drop_after(self.path, step)
        self._file = self.path.open("a", encoding="utf-8")
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1, flush_secs=30)

    def write(self, step: int, values: dict[str, Any]) -> None:
        """One line; numbers also go to TensorBoard."""
        self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in values.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Writes out what is left."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line that a kill cut short is left out."""
    if not path.is_file():
        return []
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def last_metrics(path: Path) -> dict[str, Any] | None:
    """The newest whole line of a file that is being written; None when there is none yet."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")[:-1]
    try:
        return json.loads(lines[-1]) if lines else None
    except json.JSONDecodeError:
        return None


def drop_after(path: Path, step: int) -> None:
    """Leaves the lines up to `step`."""
    if path.is_file():
        kept = [line for line in read_metrics(path) if line["step"] <= step]
        write_text_atomic(path, "".join(json.dumps(line) + "\n" for line in kept))
