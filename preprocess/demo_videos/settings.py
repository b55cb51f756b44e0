"""What a demo set is made of. The same settings give the same bytes; workers are not among them."""

from dataclasses import dataclass

from preprocess.demo_videos.names import CLASS_NAMES

DIFFICULTIES = {"easy": 0.25, "medium": 0.5, "hard": 0.8}


@dataclass(frozen=True)
class DemoSettings:
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
        _within("classes", self.num_classes, 2, len(CLASS_NAMES))
        _within("groups", self.num_groups, 2, 99)  # two digits in the file name
        _within("clips per group", self.clips_per_group, 1, 99)
        _within("frames", self.num_frames, 2, 10_000)
        _within("width", self.width, 32, 1920)
        _within("height", self.height, 32, 1080)
        _within("fps", self.fps, 1, 240)
        _within("seed", self.seed, 0, 2**32 - 1)
        _within("difficulty", self.difficulty, 0.0, 1.0)
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


def parse_size(text: str) -> tuple[int, int]:
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


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ValueError(f"{name} is {value}; it must be from {low} to {high}")
