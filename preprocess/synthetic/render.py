"""Render an appearance along a trajectory. Everything is warped with sub-pixel accuracy, for realistic flow.

Shapes: T frames, H x W pixels, S side of a sprite. World coordinates are in half frame heights around the center.
"""

from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from preprocess.synthetic.appearance import BACKGROUND_HALF_SIZE, Appearance, Image
from preprocess.synthetic.shapes import MARGIN
from preprocess.synthetic.trajectory import Trajectory

Matrix: TypeAlias = NDArray[np.float64]  # (2, 3)


def render(appearance: Appearance, trajectory: Trajectory) -> NDArray[np.uint8]:
    """Render RGB frames (T, H, W, 3)."""
    height, width = appearance.light.shape[:2]
    patches = [crop_patch(appearance.ground, position, side=height // 2) for position in trajectory.patches]
    frames = np.empty((len(trajectory.camera), height, width, 3), np.uint8)
    for time, camera in enumerate(trajectory.camera):
        to_pixels = compose_affine(world_to_pixels(width, height), camera)
        frame = warp_background(appearance.background, to_pixels, width, height)
        for patch, poses in zip(patches, trajectory.distractors, strict=True):
            blend_sprite_(frame, patch, compose_affine(to_pixels, sprite_to_world(poses[time], 0.3, len(patch))))
        for poses in trajectory.bodies:
            blend_sprite_(
                frame,
                appearance.sprite,
                compose_affine(to_pixels, sprite_to_world(poses[time], appearance.radius, len(appearance.sprite))),
            )
        frames[time] = np.clip(frame * appearance.light, 0, 255).round()
    return frames


def warp_background(background: Image, to_pixels: Matrix, width: int, height: int) -> Image:
    """Return the background in the camera's frame, (H, W, 3); `to_pixels` maps the world to frame pixels."""
    rows, columns = background.shape[:2]
    half_width, half_height = BACKGROUND_HALF_SIZE
    to_world = np.array([[2 * half_width / columns, 0, -half_width], [0, 2 * half_height / rows, -half_height]])
    matrix = compose_affine(to_pixels, to_world)
    flags, border = cv2.INTER_LINEAR, cv2.BORDER_REFLECT
    view: Image = cv2.warpAffine(background, matrix, (width, height), flags=flags, borderMode=border)
    return view


def blend_sprite_(frame: Image, sprite: Image, matrix: Matrix) -> None:
    """Blend a sprite (S, S, 4) over the frame, in place; `matrix` maps sprite pixels to frame pixels."""
    side, (height, width) = len(sprite), frame.shape[:2]
    corners = np.array([[0, 0, 1], [side, 0, 1], [0, side, 1], [side, side, 1]]) @ matrix.T
    left, top = np.clip(np.floor(corners.min(0)).astype(int), 0, (width, height))
    right, bottom = np.clip(np.ceil(corners.max(0)).astype(int) + 1, 0, (width, height))
    if right <= left or bottom <= top:
        return  # outside the frame
    local_matrix = matrix - np.array([[0, 0, left], [0, 0, top]])
    layer = cv2.warpAffine(sprite, local_matrix, (int(right - left), int(bottom - top)), flags=cv2.INTER_LINEAR)
    region = frame[top:bottom, left:right]
    region += layer[..., 3:] * (layer[..., :3] - region)


def crop_patch(ground: Image, position: NDArray[np.float64], side: int) -> Image:
    """Return a round patch of the ground with a soft edge, (S, S, 4), alpha last."""
    row, column = (position * (np.array(ground.shape[:2]) - side)).astype(int)
    y, x = np.mgrid[-1 : 1 : side * 1j, -1 : 1 : side * 1j]
    alpha = np.clip((1.0 - np.hypot(x, y)) / 0.3, 0.0, 1.0).astype(np.float32)
    return np.concatenate([ground[row : row + side, column : column + side], alpha[..., None]], axis=2)


def sprite_to_world(pose: NDArray[np.float64], radius: float, side: int) -> Matrix:
    """Return the affine map from sprite pixels to the world, for a body of this radius in this pose (4,)."""
    x, y, scale, angle = pose
    unit = 2 * MARGIN * radius * scale / side
    cos, sin = unit * np.cos(angle), unit * np.sin(angle)
    center = (side - 1) / 2
    return np.array([[cos, -sin, x - (cos - sin) * center], [sin, cos, y - (sin + cos) * center]])


def world_to_pixels(width: int, height: int) -> Matrix:
    """Return the affine map from world coordinates to frame pixels."""
    return np.array([[height / 2, 0, (width - 1) / 2], [0, height / 2, (height - 1) / 2]])


def compose_affine(second: Matrix, first: Matrix) -> Matrix:
    """Return the affine map that applies `first`, then `second`."""
    linear = second[:, :2] @ first[:, :2]
    return np.concatenate([linear, second[:, :2] @ first[:, 2:] + second[:, 2:]], axis=1)
