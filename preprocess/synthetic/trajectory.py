"""The motion in a clip: what is drawn per clip, and what misleads flow.

Camera motion, speed and moving distractors are independent of the class. Without labels, a network learns little else
from flow if the camera moves much, so camera motion grows with the square of the difficulty. Distractors have the
ground's texture, so they are hardly visible in RGB; some clips have none, others several.
Shapes: B bodies, D distractors, T frames.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from preprocess.synthetic.motions import Motion

Array: TypeAlias = NDArray[np.float64]
MAX_DISTRACTORS = 4


@dataclass(frozen=True)
class Trajectory:
    """Everything that moves in a clip, in half frame heights.

    `bodies` (B, T, 4) and `distractors` (D, T, 4) are poses in the world, `camera` (T, 2, 3) affine maps from the
    world to the frame, `patches` (D, 2) from 0 to 1 the positions of the distractors' texture on the ground.
    """

    bodies: Array
    distractors: Array
    patches: Array
    camera: Array


def sample_trajectory(
    rng: np.random.Generator, motion: Motion, *, num_frames: int, fps: int, difficulty: float
) -> Trajectory:
    """Draw the trajectory of one clip of a class."""
    seconds = np.arange(num_frames) / fps
    num_distractors = int(rng.binomial(MAX_DISTRACTORS, difficulty))
    return Trajectory(
        bodies=sample_bodies(rng, motion, seconds, difficulty),
        distractors=sample_distractors(rng, num_distractors, seconds),
        patches=rng.random((num_distractors, 2)),
        camera=sample_camera(rng, seconds, strength=difficulty**2),
    )


def sample_bodies(rng: np.random.Generator, motion: Motion, seconds: Array, difficulty: float) -> Array:
    """Draw poses (B, T, 4): the class's motion with random speed, phase, amplitude, rotation, flip and offset."""
    speed = 2.0 ** (rng.uniform(-1, 1) * (0.2 + 0.8 * difficulty))
    poses = motion.poses(rng.random() + speed * motion.cycles_per_second * seconds)
    poses[..., :2] *= 1.0 - rng.uniform(0.0, 0.5) * difficulty
    poses = rotate_poses(poses, rng.normal(0.0, 0.25) * difficulty)
    if rng.random() < 0.5:
        poses = mirror_poses(poses)
    poses[..., :2] += rng.uniform(-1, 1, size=2) * (0.3, 0.15)
    return poses


def rotate_poses(poses: Array, angle: float) -> Array:
    """Rotate poses (path and body together) about the origin by `angle` radians."""
    x, y, scale, own_angle = np.moveaxis(poses, -1, 0)
    cos, sin = np.cos(angle), np.sin(angle)
    return np.stack([cos * x - sin * y, sin * x + cos * y, scale, own_angle + angle], axis=-1)


def mirror_poses(poses: Array) -> Array:
    """Flip poses horizontally."""
    return poses * (-1.0, 1.0, 1.0, -1.0)


def sample_distractors(rng: np.random.Generator, num_distractors: int, seconds: Array) -> Array:
    """Draw poses (D, T, 4) of patches, each with its own drift, oscillation and rotation."""
    poses = np.zeros((num_distractors, len(seconds), 4))
    centered_seconds = seconds - seconds.mean()
    for pose in poses:
        start, drift = rng.uniform(-1, 1, size=2) * (1.2, 0.8), rng.normal(0.0, 0.5, size=2)
        pose[:, :2] = start + centered_seconds[:, None] * drift
        pose[:, :2] += np.stack(
            [sample_oscillation(rng, seconds, 0.15), sample_oscillation(rng, seconds, 0.15)], axis=1
        )
        pose[:, 2] = rng.uniform(0.6, 1.2)
        pose[:, 3] = rng.uniform(0, 2 * np.pi) + centered_seconds * rng.normal(0.0, 1.5)
    return poses


def sample_camera(rng: np.random.Generator, seconds: Array, strength: float) -> Array:
    """Draw a camera's pan, oscillation, jitter, zoom and roll as affine maps (T, 2, 3) from the world to the frame."""
    centered_seconds = seconds - seconds.mean()
    drift = rng.normal(0.0, 0.3, size=2) * strength
    pan = centered_seconds[:, None] * drift
    pan += np.stack(
        [sample_oscillation(rng, seconds, 0.2 * strength), sample_oscillation(rng, seconds, 0.15 * strength)], axis=1
    )
    pan += rng.normal(0.0, 0.014, size=pan.shape) * strength
    zoom = np.exp(strength * (rng.normal(0.0, 0.12) * centered_seconds + sample_oscillation(rng, seconds, 0.08)))
    roll = strength * (rng.normal(0.0, 0.12) * centered_seconds + sample_oscillation(rng, seconds, 0.07))
    cos, sin = zoom * np.cos(roll), zoom * np.sin(roll)
    linear = np.stack([np.stack([cos, -sin], axis=1), np.stack([sin, cos], axis=1)], axis=1)  # (T, 2, 2)
    return np.concatenate([linear, -linear @ pan[..., None]], axis=2)


def sample_oscillation(rng: np.random.Generator, seconds: Array, max_amplitude: float) -> Array:
    """Draw a slow sine (T,) around 0 with random frequency, phase and amplitude up to `max_amplitude`."""
    frequency, start, amplitude = rng.uniform(0.3, 1.5), rng.random(), rng.uniform(0.0, max_amplitude)
    return amplitude * np.sin(2 * np.pi * (frequency * seconds + start))
