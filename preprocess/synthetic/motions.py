"""What a class does: its bodies' poses over time, as a function of the phase.

# B bodies, T frames

A motion takes the phase in cycles, (T,), and gives (B, T, 4): x, y, scale, angle. The unit of x (to the
right) and y (down) is half the height of the frame, with the origin in its middle; scale 1 is the body's own
size; the angle is in radians. Every motion repeats itself after one cycle and is the same action when
mirrored, because training flips clips.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from preprocess.synthetic.config import CLASS_NAMES

Array: TypeAlias = NDArray[np.float64]
WHEEL_RADIUS = 0.37  # at which a rolling wheel doesn't slip


@dataclass(frozen=True)
class Motion:
    """How a class moves, which kind of object does it (`shapes.py`), and its usual cycles a second."""

    poses: Callable[[Array], Array]
    kind: str
    cycles_per_second: float


def bounce(phase: Array) -> Array:
    """A ball in free fall that the ground throws back: one parabola a cycle."""
    fraction = phase % 1.0
    return _single_body_poses(phase, y=0.5 - 4.0 * fraction * (1.0 - fraction))


def figure_eight(phase: Array) -> Array:
    """A kite along a lying eight."""
    return _single_body_poses(phase, x=0.7 * _sin_cycles(phase), y=0.4 * _sin_cycles(2 * phase))


def meet(phase: Array) -> Array:
    """Two boxes that come together and part again."""
    half_distance = 0.5 + 0.26 * _cos_cycles(phase)
    return np.concatenate(
        [_single_body_poses(phase, x=-half_distance, scale=0.8), _single_body_poses(phase, x=half_distance, scale=0.8)]
    )


def orbit(phase: Array) -> Array:
    """Two balls around their common center."""
    x, y = 0.45 * _cos_cycles(phase), 0.45 * _sin_cycles(phase)
    return np.concatenate(
        [_single_body_poses(phase, x=x, y=y, scale=0.8), _single_body_poses(phase, x=-x, y=-y, scale=0.8)]
    )


def pendulum(phase: Array) -> Array:
    """A plank that hangs from its upper end and swings."""
    swing = 0.8 * _sin_cycles(phase)
    return _single_body_poses(
        phase, x=0.5 * np.sin(swing), y=0.5 * np.cos(swing) - 0.4, scale=1.1, angle=np.pi / 2 - swing
    )


def pulse(phase: Array) -> Array:
    """A star that grows and shrinks."""
    return _single_body_poses(phase, scale=1.1 + 0.5 * _sin_cycles(phase))


def roll(phase: Array) -> Array:
    """A wheel that rolls to and fro without slipping."""
    x = 0.7 * _triangle_wave(phase)
    return _single_body_poses(phase, x=x, angle=x / WHEEL_RADIUS)


def see_saw(phase: Array) -> Array:
    """A plank that rocks about its middle."""
    return _single_body_poses(phase, scale=1.3, angle=0.6 * _sin_cycles(phase))


def shake(phase: Array) -> Array:
    """A box that trembles in its place."""
    return _single_body_poses(
        phase, x=0.13 * _sin_cycles(phase), y=0.05 * _cos_cycles(2 * phase), angle=0.15 * _cos_cycles(phase)
    )


def slide(phase: Array) -> Array:
    """A wheel that is pushed to and fro and doesn't turn."""
    return _single_body_poses(phase, x=0.7 * _triangle_wave(phase))


def spin(phase: Array) -> Array:
    """A star that turns in its place."""
    return _single_body_poses(phase, scale=1.2, angle=2 * np.pi * phase)


def spiral(phase: Array) -> Array:
    """A kite that circles outwards and back inwards, three turns a cycle."""
    radius = 0.36 - 0.3 * _cos_cycles(phase)
    return _single_body_poses(phase, x=radius * _cos_cycles(3 * phase), y=0.85 * radius * _sin_cycles(3 * phase))


def _single_body_poses(
    phase: Array, *, x: ArrayLike = 0.0, y: ArrayLike = 0.0, scale: ArrayLike = 1.0, angle: ArrayLike = 0.0
) -> Array:
    """The poses (1, T, 4); a component may be a number that holds for all frames."""
    return np.stack([np.broadcast_to(part, phase.shape) for part in (x, y, scale, angle)], axis=-1)[None]


def _sin_cycles(phase: Array) -> Array:
    return np.sin(2 * np.pi * phase)


def _cos_cycles(phase: Array) -> Array:
    return np.cos(2 * np.pi * phase)


def _triangle_wave(phase: Array) -> Array:
    """From -1 up to 1 and back at constant speed, once a cycle."""
    return 1.0 - 4.0 * np.abs(phase % 1.0 - 0.5)


# A kind belongs to two classes: what the object is narrows the choice, what it does decides.
MOTIONS = {
    "Bounce": Motion(bounce, "ball", 1.2),
    "FigureEight": Motion(figure_eight, "kite", 0.8),
    "Meet": Motion(meet, "box", 1.1),
    "Orbit": Motion(orbit, "ball", 0.8),
    "Pendulum": Motion(pendulum, "plank", 1.0),
    "Pulse": Motion(pulse, "star", 1.2),
    "Roll": Motion(roll, "wheel", 0.8),
    "SeeSaw": Motion(see_saw, "plank", 1.2),
    "Shake": Motion(shake, "box", 3.5),
    "Slide": Motion(slide, "wheel", 0.8),
    "Spin": Motion(spin, "star", 0.7),
    "Spiral": Motion(spiral, "kite", 0.5),
}
assert tuple(MOTIONS) == CLASS_NAMES
