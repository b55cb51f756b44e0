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


# What a demo set is made of. The same settings give the same bytes; workers are not among them.

DIFFICULTIES = {"easy": 0.25, "medium": 0.5, "hard": 0.8}


@dataclass(frozen=True)
class DemoConfig:
    """Counts, frame size in pixels, and `difficulty` from 0 (nothing misleads) to 1 (nearly all does)."""

    num_classes: int = len(CLASS_NAMES)
    num_groups: int = 12
    clips_per_group: int = 4
    num_frames: int = 40
    width: int = 112
    height: int = 84
    fps: int = 25
    seed: int = 0
    difficulty: float = DIFFICULTIES["medium"]

    def __post_init__(self) -> None:
        _check_range("classes", self.num_classes, 2, len(CLASS_NAMES))
        _check_range("groups", self.num_groups, 2, 99)  # two digits in the file name
        _check_range("clips per group", self.clips_per_group, 1, 99)
        _check_range("frames", self.num_frames, 2, 10_000)
        _check_range("width", self.width, 32, 1920)
        _check_range("height", self.height, 32, 1080)
        _check_range("fps", self.fps, 1, 240)
        _check_range("seed", self.seed, 0, 2**32 - 1)
        _check_range("difficulty", self.difficulty, 0.0, 1.0)
        if self.width % 2 or self.height % 2:
            raise ValueError(f"size {self.width}x{self.height}: the codec needs an even width and height")

    @property
    def class_names(self) -> tuple[str, ...]:
        """The first `num_classes` of the table, in the order of their labels."""
        return CLASS_NAMES[: self.num_classes]

    @property
    def num_test_groups(self) -> int:
        """How many groups, from g01 on, are for testing: 7 of 25 as in UCF-101, and at least one."""
        return max(1, round(self.num_groups * 7 / 25))

    @property
    def num_clips(self) -> int:
        """Videos in the whole set."""
        return self.num_classes * self.num_groups * self.clips_per_group


def parse_frame_size(text: str) -> tuple[int, int]:
    """Reads "112x84" as (width, height)."""
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise ValueError(f"size {text!r} is not WIDTHxHEIGHT, for example 112x84")
    return int(width), int(height)


def parse_difficulty(text: str) -> float:
    """Reads easy, medium, hard, or a number from 0 to 1."""
    if text in DIFFICULTIES:
        return DIFFICULTIES[text]
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"difficulty {text!r}: choose from {', '.join(DIFFICULTIES)}, or a number from 0 to 1"
        ) from None


def _check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be from {low} to {high}")
