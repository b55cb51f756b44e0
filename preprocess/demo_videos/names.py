"""Names: the classes in the order of their labels, and where a clip's file stands (as in UCF-101)."""

from dataclasses import dataclass

# Alphabetical, as UCF-101 numbers its classes. `motions.py` says what each of them does.
CLASS_NAMES = (
    "Bounce",
    "FigureEight",
    "Meet",
    "Orbit",
    "Pendulum",
    "Pulse",
    "Roll",
    "SeeSaw",
    "Shake",
    "Slide",
    "Spin",
    "Spiral",
)


@dataclass(frozen=True)
class ClipName:
    """One video of the set; `group` and `clip` count from 1."""

    class_name: str
    group: int
    clip: int

    @property
    def path(self) -> str:
        """The file under the set's folder, as the split lists write it."""
        return f"{self.class_name}/v_{self.class_name}_g{self.group:02d}_c{self.clip:02d}.avi"
