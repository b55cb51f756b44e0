"""What is in the pictures: motions, shapes, appearance by group, trajectory by clip."""

import cv2
import numpy as np
import pytest

from preprocess.synthetic.appearance import CLASS_BACKGROUNDS, PATTERNS, sample_appearance
from preprocess.synthetic.config import CLASS_NAMES, ClipName, DemoConfig
from preprocess.synthetic.dataset import render_clip
from preprocess.synthetic.motions import MOTIONS, WHEEL_RADIUS
from preprocess.synthetic.render import compose_affine, render, sprite_to_world
from preprocess.synthetic.shapes import MARGIN, OBJECT_SHAPES, rasterize
from preprocess.synthetic.trajectory import Trajectory, mirror_poses, rotate_poses, sample_camera, sample_trajectory

PHASE = np.linspace(0, 1, 101)
SETTINGS = DemoConfig(num_frames=8, width=64, height=48)


def poses_for(name: str, phase: np.ndarray = PHASE) -> np.ndarray:
    return MOTIONS[name].poses(phase)


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_every_motion_repeats_after_one_cycle(name: str) -> None:
    now, later = poses_for(name), poses_for(name, PHASE + 1)
    later[..., 3] -= np.round((later - now)[..., 3] / (2 * np.pi)) * 2 * np.pi  # whole turns don't count
    np.testing.assert_allclose(now, later, atol=1e-9)


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_every_motion_moves_and_stays_in_the_picture(name: str) -> None:
    poses = poses_for(name)
    assert np.ptp(poses, axis=1).max() > 0.2
    assert np.abs(poses[..., 0]).max() <= 0.8
    assert np.abs(poses[..., 1]).max() <= 0.6
    assert poses[..., 2].min() > 0


def test_every_kind_of_object_belongs_to_two_classes() -> None:
    kinds = [motion.kind for motion in MOTIONS.values()]
    assert set(kinds) == set(OBJECT_SHAPES)
    assert all(kinds.count(kind) == 2 for kind in OBJECT_SHAPES)


def test_bounce_falls_with_constant_acceleration() -> None:
    height = poses_for("Bounce", np.linspace(0.01, 0.99, 99))[0, :, 1]
    np.testing.assert_allclose(np.diff(height, n=2), np.diff(height, n=2)[0], atol=1e-9)
    assert np.diff(height, n=2)[0] > 0  # downwards


def test_roll_does_not_slip_and_slide_does_not_turn() -> None:
    rolling, sliding = poses_for("Roll")[0], poses_for("Slide")[0]
    np.testing.assert_allclose(np.diff(rolling[:, 0]), WHEEL_RADIUS * np.diff(rolling[:, 3]), atol=1e-9)
    np.testing.assert_array_equal(rolling[:, :2], sliding[:, :2])
    assert np.ptp(sliding[:, 3]) == 0


def test_pendulum_keeps_its_distance_from_the_pivot_and_points_at_it() -> None:
    x, y, _, angle = poses_for("Pendulum")[0].T
    np.testing.assert_allclose(np.hypot(x, y + 0.4), 0.5)
    np.testing.assert_allclose(np.stack([np.cos(angle), np.sin(angle)]), np.stack([x, y + 0.4]) / 0.5, atol=1e-9)


def test_orbit_keeps_the_bodies_opposite_and_meet_brings_them_together() -> None:
    orbit, meeting = poses_for("Orbit"), poses_for("Meet")
    np.testing.assert_allclose(orbit[0, :, :2], -orbit[1, :, :2])
    np.testing.assert_allclose(np.hypot(orbit[0, :, 0], orbit[0, :, 1]), 0.45)
    distance = meeting[1, :, 0] - meeting[0, :, 0]
    assert distance.min() < 0.5 < 1.5 < distance.max()


def test_mirroring_twice_and_turning_back_give_the_same_poses() -> None:
    poses = poses_for("Spiral")
    np.testing.assert_allclose(mirror_poses(mirror_poses(poses)), poses)
    np.testing.assert_allclose(rotate_poses(rotate_poses(poses, 0.7), -0.7), poses, atol=1e-12)


@pytest.mark.parametrize("kind", list(OBJECT_SHAPES))
def test_a_mask_is_centered_smooth_and_within_its_sprite(kind: str) -> None:
    alpha = rasterize(OBJECT_SHAPES[kind](np.random.default_rng(0)), 64)
    assert alpha.shape == (64, 64)
    assert alpha.min() == 0 and alpha.max() == 1
    assert ((alpha > 0) & (alpha < 1)).any()
    assert max(alpha[0].max(), alpha[-1].max(), alpha[:, 0].max(), alpha[:, -1].max()) == 0
    rows, columns = np.indices(alpha.shape)
    assert abs(np.average(rows, weights=alpha) - 31.5) < 6
    assert abs(np.average(columns, weights=alpha) - 31.5) < 2


def test_a_body_is_drawn_where_its_pose_says_to_a_tenth_of_a_pixel() -> None:
    appearance = sample_appearance(
        np.random.default_rng(0),
        kind="ball",
        class_background=CLASS_BACKGROUNDS["Bounce"],
        width=64,
        height=48,
        difficulty=0.0,
    )
    appearance.sprite[..., :3], appearance.background[:], appearance.light[:] = 255, 0, 1
    poses = np.array([[[0.25, -0.1, 1.0, 0.3]]])
    still = np.eye(2, 3)[None]
    frame = render(appearance, Trajectory(poses, np.zeros((0, 1, 4)), np.zeros((0, 2)), still))[0, ..., 0]
    rows, columns = np.indices(frame.shape)
    center = np.average(columns, weights=frame), np.average(rows, weights=frame)
    np.testing.assert_allclose(center, [31.5 + 0.25 * 24, 23.5 - 0.1 * 24], atol=0.1)


def test_placing_a_sprite_puts_its_middle_at_the_pose() -> None:
    matrix = sprite_to_world(np.array([0.3, -0.2, 1.5, 0.7]), radius=0.3, side=33)
    np.testing.assert_allclose(matrix @ [16, 16, 1], [0.3, -0.2])
    right_edge = matrix @ [16 + 16.5, 16, 1] - [0.3, -0.2]
    np.testing.assert_allclose(np.hypot(*right_edge), MARGIN * 0.3 * 1.5)


def test_composing_applies_the_first_map_first() -> None:
    rng = np.random.default_rng(0)
    first, second, point = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=2)
    slowly = second @ np.append(first @ np.append(point, 1), 1)
    np.testing.assert_allclose(compose_affine(second, first) @ np.append(point, 1), slowly)


@pytest.mark.parametrize("name", list(PATTERNS))
def test_a_pattern_shows_both_colors_and_has_no_hard_edges(name: str) -> None:
    pattern = PATTERNS[name](np.random.default_rng(0), 60, 90, 1.0)
    assert pattern.shape == (60, 90)
    assert 0 <= pattern.min() < 0.3 and 0.7 < pattern.max() <= 1
    assert np.abs(np.diff(pattern, axis=1)).max() < 0.9


def test_every_class_has_a_home_of_its_own() -> None:
    assert tuple(CLASS_BACKGROUNDS) == CLASS_NAMES and len(set(CLASS_BACKGROUNDS.values())) == len(CLASS_BACKGROUNDS)
    assert {class_background.pattern for class_background in CLASS_BACKGROUNDS.values()} == set(PATTERNS)


def test_a_coarse_pattern_has_longer_waves_than_a_fine_one() -> None:
    fine, coarse = (PATTERNS["stripes"](np.random.default_rng(0), 200, 200, scale) for scale in (1.0, 2.0))
    changes = [np.count_nonzero(np.diff((pattern > 0.5).astype(int), axis=1)) for pattern in (fine, coarse)]
    assert changes[0] == pytest.approx(2 * changes[1], rel=0.15)


def test_clips_of_a_group_look_alike_and_groups_do_not() -> None:
    colors = np.array(
        [
            [render_clip(ClipName("Orbit", group, number), SETTINGS).mean((0, 1, 2)) for number in (1, 2, 3)]
            for group in range(1, 9)
        ]
    )  # (groups, clips, 3)
    within = np.linalg.norm(colors - colors.mean(1, keepdims=True), axis=2).mean()
    between = np.linalg.norm(colors.mean(1) - colors.mean((0, 1)), axis=1).mean()
    assert within < 0.25 * between


def test_clips_of_a_group_move_differently() -> None:
    motion = MOTIONS["Orbit"]
    one, two = (
        sample_trajectory(np.random.default_rng(seed), motion, num_frames=8, fps=25, difficulty=0.5) for seed in (1, 2)
    )
    assert np.abs(one.camera - two.camera).max() > 0.01
    assert np.abs(one.bodies - two.bodies).max() > 0.01
    assert np.abs(one.distractors[0] - two.distractors[0]).max() > 0.01


@pytest.mark.parametrize("difficulty", [0.1, 0.5, 0.9])
def test_the_number_of_distractors_varies_between_clips_and_grows_with_difficulty(difficulty: float) -> None:
    trajectories = [
        sample_trajectory(np.random.default_rng(seed), MOTIONS["Spin"], num_frames=2, fps=25, difficulty=difficulty)
        for seed in range(300)
    ]
    counts = [len(trajectory.distractors) for trajectory in trajectories]
    assert len(set(counts)) > 1
    assert abs(np.mean(counts) - 4 * difficulty) < 0.2  # more than three standard errors


def test_without_difficulty_the_camera_stands_still_and_nothing_distracts() -> None:
    camera = sample_camera(np.random.default_rng(0), np.arange(8) / 25, strength=0.0)
    np.testing.assert_allclose(camera, np.broadcast_to(np.eye(2, 3), (8, 2, 3)), atol=1e-12)
    trajectory = sample_trajectory(np.random.default_rng(0), MOTIONS["Spin"], num_frames=8, fps=25, difficulty=0.0)
    assert trajectory.distractors.shape == (0, 8, 4)


def test_optical_flow_of_a_still_scene_is_the_camera_motion() -> None:
    appearance = sample_appearance(
        np.random.default_rng(3),
        kind="ball",
        class_background=CLASS_BACKGROUNDS["Bounce"],
        width=112,
        height=84,
        difficulty=0.5,
    )
    camera = np.array([np.eye(2, 3), np.eye(2, 3)])
    camera[1, :, 2] = 2.0 / 42, -1.0 / 42  # two pixels to the right, one up
    empty = np.zeros((0, 2, 4))
    frames = render(appearance, Trajectory(empty, empty, np.zeros((0, 2)), camera))
    first, second = (cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames)
    flow = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_MEDIUM).calc(first, second, None)
    np.testing.assert_allclose(np.median(flow[10:-10, 10:-10], axis=(0, 1)), [2.0, -1.0], atol=0.1)


def test_speed_in_seconds_does_not_depend_on_the_frame_rate() -> None:
    slow, fast = (
        sample_trajectory(np.random.default_rng(0), MOTIONS["Bounce"], num_frames=number, fps=fps, difficulty=0.5)
        for number, fps in ((5, 10), (9, 20))
    )
    np.testing.assert_allclose(slow.bodies, fast.bodies[:, ::2])
