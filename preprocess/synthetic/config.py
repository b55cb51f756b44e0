"""Configuration of a demo set: classes, names of files (as in UCF-101), and settings.

The same settings give the same bytes; the number of workers is not one of them.
"""

from dataclasses import dataclass

# In the order of their labels: alphabetical, as in UCF-101. `motions.py` defines what each of them does.
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
DIFFICULTIES = {"easy": 0.25, "medium": 0.5, "hard": 0.8}


@dataclass(frozen=True)
class ClipName:
    """One video of the set; `group` and `clip` start at 1."""

    class_name: str
    group: int
    clip: int

    @property
    def path(self) -> str:
        """Path relative to the set's folder, as in the split lists."""
        return f"{self.class_name}/v_{self.class_name}_g{self.group:02d}_c{self.clip:02d}.avi"


@dataclass(frozen=True)
class DemoConfig:
    """Counts, frame size in pixels, and `difficulty` from 0 (no misleading cues) to 1 (the strongest)."""

    num_classes: int = len(CLASS_NAMES)
    num_groups: int = 12
    clips_per_group: int = 4
    num_frames: int = 40
    width: int = 112
    height: int = 84
    fps: int = 25
    seed: int = 0
    difficulty: float = DIFFICULTIES["medium"]
    audio: bool = False  # whether the videos have sound

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
        """The first `num_classes` of `CLASS_NAMES`, in the order of their labels."""
        return CLASS_NAMES[: self.num_classes]

    @property
    def num_test_groups(self) -> int:
        """Number of groups, from g01 on, in the test subset: 7 of 25 as in UCF-101, at least one."""
        return max(1, round(self.num_groups * 7 / 25))

    @property
    def num_clips(self) -> int:
        """Number of videos in the set."""
        return self.num_classes * self.num_groups * self.clips_per_group


def parse_frame_size(text: str) -> tuple[int, int]:
    """Parse "112x84" as (width, height)."""
    width, cross, height = text.lower().partition("x")
    if not (cross and width.isdecimal() and height.isdecimal()):
        raise ValueError(f"size {text!r} is not WIDTHxHEIGHT, for example 112x84")
    return int(width), int(height)


def parse_difficulty(text: str) -> float:
    """Parse easy, medium, hard, or a number from 0 to 1."""
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
