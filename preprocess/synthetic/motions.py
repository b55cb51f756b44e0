"""The motion of each class: poses of its bodies as a function of the phase.

A motion takes the phase in cycles, (T,), and returns poses (B, T, 4): x, y, scale, angle. x (right) and y (down) are
in half frame heights, with the origin at the center; scale 1 is the body's own size; the angle is in radians. Every
motion has a period of one cycle, and its mirror image is the same action, because training flips clips.
Shapes: B bodies, T frames.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from preprocess.synthetic.config import CLASS_NAMES

Array: TypeAlias = NDArray[np.float64]
WHEEL_RADIUS = 0.37  # half frame heights; for rolling without slipping


@dataclass(frozen=True)
class Motion:
    """A class: its poses, its kind of object (`shapes.py`), and its mean frequency."""

    poses: Callable[[Array], Array]
    kind: str
    cycles_per_second: float


def bounce(phase: Array) -> Array:
    """Bounce a ball off the ground: one parabola per cycle."""
    fraction = phase % 1.0
    return _single_body_poses(phase, y=0.5 - 4.0 * fraction * (1.0 - fraction))


def figure_eight(phase: Array) -> Array:
    """Fly a kite along a horizontal figure eight."""
    return _single_body_poses(phase, x=0.7 * _sin_cycles(phase), y=0.4 * _sin_cycles(2 * phase))


def meet(phase: Array) -> Array:
    """Move two boxes together and apart."""
    half_distance = 0.5 + 0.26 * _cos_cycles(phase)
    return np.concatenate(
        [_single_body_poses(phase, x=-half_distance, scale=0.8), _single_body_poses(phase, x=half_distance, scale=0.8)]
    )


def orbit(phase: Array) -> Array:
    """Move two balls around their common center."""
    x, y = 0.45 * _cos_cycles(phase), 0.45 * _sin_cycles(phase)
    return np.concatenate(
        [_single_body_poses(phase, x=x, y=y, scale=0.8), _single_body_poses(phase, x=-x, y=-y, scale=0.8)]
    )


def pendulum(phase: Array) -> Array:
    """Swing a plank from its upper end."""
    swing = 0.8 * _sin_cycles(phase)
    return _single_body_poses(
        phase, x=0.5 * np.sin(swing), y=0.5 * np.cos(swing) - 0.4, scale=1.1, angle=np.pi / 2 - swing
    )


def pulse(phase: Array) -> Array:
    """Grow and shrink a star."""
    return _single_body_poses(phase, scale=1.1 + 0.5 * _sin_cycles(phase))


def roll(phase: Array) -> Array:
    """Roll a wheel back and forth without slipping."""
    x = 0.7 * _triangle_wave(phase)
    return _single_body_poses(phase, x=x, angle=x / WHEEL_RADIUS)


def see_saw(phase: Array) -> Array:
    """Rock a plank about its center."""
    return _single_body_poses(phase, scale=1.3, angle=0.6 * _sin_cycles(phase))


def shake(phase: Array) -> Array:
    """Shake a box in place."""
    return _single_body_poses(
        phase, x=0.13 * _sin_cycles(phase), y=0.05 * _cos_cycles(2 * phase), angle=0.15 * _cos_cycles(phase)
    )


def slide(phase: Array) -> Array:
    """Slide a wheel back and forth without turning it."""
    return _single_body_poses(phase, x=0.7 * _triangle_wave(phase))


def spin(phase: Array) -> Array:
    """Spin a star in place."""
    return _single_body_poses(phase, scale=1.2, angle=2 * np.pi * phase)


def spiral(phase: Array) -> Array:
    """Fly a kite along a spiral, outward and back, three turns per cycle."""
    radius = 0.36 - 0.3 * _cos_cycles(phase)
    return _single_body_poses(phase, x=radius * _cos_cycles(3 * phase), y=0.85 * radius * _sin_cycles(3 * phase))


def _single_body_poses(
    phase: Array, *, x: ArrayLike = 0.0, y: ArrayLike = 0.0, scale: ArrayLike = 1.0, angle: ArrayLike = 0.0
) -> Array:
    """Stack the components of a pose to (1, T, 4); scalars are broadcast to all frames."""
    return np.stack([np.broadcast_to(component, phase.shape) for component in (x, y, scale, angle)], axis=-1)[None]


def _sin_cycles(phase: Array) -> Array:
    return np.sin(2 * np.pi * phase)


def _cos_cycles(phase: Array) -> Array:
    return np.cos(2 * np.pi * phase)


def _triangle_wave(phase: Array) -> Array:
    """Return a triangle wave from -1 to 1 and back, once per cycle."""
    return 1.0 - 4.0 * np.abs(phase % 1.0 - 0.5)


# Each kind of object belongs to two classes: the object alone does not determine the class.
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
