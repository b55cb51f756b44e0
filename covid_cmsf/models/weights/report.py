"""What happened when weights were read, for people and for the log."""

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class LoadReport:
    """`left_over` names every key of the file that was not used; `changes` says what was altered or is not known."""

    path: str
    layout: str
    part: str
    encoder: str
    in_channels: int
    num_taken: int
    num_twins: int
    head: str | None
    left_over: tuple[str, ...]
    changes: tuple[str, ...]

    def lines(self) -> list[str]:
        """A few lines for the screen; left-over keys are counted by where they stand."""
        twins = f" ({self.num_twins} stood there twice, with equal values)" if self.num_twins else ""
        lines = [
            f"{self.path}: {self.layout}, part {self.part}",
            f"{self.encoder} with {self.in_channels} input channels: all {self.num_taken} tensors found{twins}",
            f"head: {self.head or 'not taken'}",
        ]
        lines += [f"note: {change}" for change in self.changes]
        if self.left_over:
            places = Counter(key.split(".")[0] for key in self.left_over)
            counts = ", ".join(f"{place} ({n})" if n > 1 else place for place, n in places.items())
            lines.append(f"left over: {len(self.left_over)} keys: {counts}")
        return lines
