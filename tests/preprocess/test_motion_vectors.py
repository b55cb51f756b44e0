"""Motion vectors of video files as a modality."""

from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.flow_codec import FlowLevels, unstack_components
from covid_cmsf.clips.maintenance import check_store
from covid_cmsf.clips.records import StoreInfo
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.video_files import VideoFiles
from covid_cmsf.views.modalities import compensate_camera, get_modality
from preprocess.config import make_store_info
from preprocess.convert import ClipMetadata, StageError, convert
from preprocess.motion_vectors import MotionReader, draw_motion, rotate, with_distances
from tests.factories import write_video
from tests.preprocess.commands import run_cli

FIELDS = [("source", "i4"), ("w", "u1"), ("h", "u1"), ("dst_x", "i2"), ("dst_y", "i2")]
FIELDS += [("motion_x", "i4"), ("motion_y", "i4"), ("motion_scale", "u2")]


def panning(
    num_frames: int, velocity: tuple[int, int] = (2, -1), *, size: tuple[int, int] = (96, 64)
) -> NDArray[np.uint8]:
    """Return RGB frames (T, H, W, 3) whose whole content moves by `velocity` pixels per frame, x first."""
    rng = np.random.default_rng(0)
    ground = cv2.GaussianBlur(rng.integers(0, 256, (256, 256, 3)).astype(np.uint8), (0, 0), 2)
    ground = cv2.normalize(ground, None, 0, 255, cv2.NORM_MINMAX)
    shifted = [np.roll(ground, (velocity[1] * n, velocity[0] * n), (0, 1)) for n in range(num_frames)]
    return np.stack(shifted)[:, 80 : 80 + size[1], 80 : 80 + size[0]]


def info_of(modalities: str = "rgb,motion", **changes: object) -> StoreInfo:
    values: dict[str, object] = {"short_edge": 0, "max_frames": 0, "quality": 10, "flow_backend": "dis"}
    values |= {"flow_bound": "20", "flow_size": "stored", "flow_parameters": "", "software": "", **changes}
    return make_store_info(Path("none"), modalities=modalities, **values)  # type: ignore[arg-type]


def convert_motion(path: Path, **changes: object) -> tuple[ClipMetadata, NDArray[np.float32]]:
    cut = changes.pop("cut", (0.0, float("inf")))
    info = info_of(**changes)  # type: ignore[arg-type]
    targets = {name: path.with_name(f"{path.stem}-{name}.mp4") for name in info.modalities}
    metadata = convert(path, targets, info, decoder="av", flow=None, cut=cut)  # type: ignore[arg-type]
    with open_video(targets["motion"]) as video:
        stored = unstack_components(video.read_luma(range(metadata.num_flow)))
    return metadata, FlowLevels(20.0).decode(stored)


@pytest.mark.parametrize(
    ("codec", "ending", "options"),
    [
        ("mpeg4", "avi", {}),
        ("mpeg4", "avi", {"bf": "2"}),
        ("libx264", "mp4", {"bf": "0", "refs": "1", "preset": "fast"}),
        ("libx264", "mp4", {"bf": "2", "refs": "1", "x264-params": "b-pyramid=none:b-adapt=0", "preset": "fast"}),
        ("mpeg2video", "mpg", {"g": "5", "bf": "1"}),
    ],
)
def test_the_motion_of_a_moving_picture_is_recovered(
    tmp_path: Path, codec: str, ending: str, options: dict[str, object]
) -> None:
    path = write_video(tmp_path / f"a.{ending}", panning(16), codec=codec, options=options)
    with open_video(path) as video:
        num_frames = sum(1 for _ in video.frames())
    with MotionReader(path) as reader:
        motion = np.stack(list(reader.motion()))
    assert reader.has_vectors and motion.shape == (num_frames - 1, 2, 64, 96)
    inside = motion[1:, :, 16:-16, 16:-16]
    assert np.abs(np.median(inside, axis=(2, 3)) - np.array([2.0, -1.0])).max() < 0.6, np.median(inside, axis=(2, 3))


@pytest.mark.parametrize("size", [(720, 1280), (1080, 1920), (2160, 3840)])
def test_blocks_of_large_frames_are_drawn_where_they_are(size: tuple[int, int]) -> None:
    """FFmpeg's positions have 16 bits, and places in such a frame do not fit into them."""
    height, width = size
    vectors = np.zeros(2, FIELDS)
    vectors["source"], vectors["w"], vectors["h"], vectors["motion_scale"] = -1, 16, 8, 4
    vectors["dst_x"], vectors["dst_y"] = [8, width - 8], [4, height - 4]
    vectors["motion_x"] = [8, -4]
    expected = np.zeros((2, height, width), np.float32)
    expected[0, :8, :16], expected[0, -8:, -16:] = -2, 1
    assert np.array_equal(draw_motion(vectors, height, width, past=1, future=1), expected)


def test_b_frames_are_normalized_by_their_distance_to_both_neighbors() -> None:
    types = {"I": 1, "P": 2, "B": 3}
    frames = [SimpleNamespace(pict_type=types[letter]) for letter in "IBBPPBPBB"]
    names = {id(frame): letter + str(n) for n, (frame, letter) in enumerate(zip(frames, "IBBPPBPBB", strict=True))}
    found = [(names[id(frame)], past, future) for frame, past, future in with_distances(frames)]  # type: ignore[arg-type]
    assert found == [
        ("I0", 1, 1),
        ("B1", 1, 2),
        ("B2", 2, 1),
        ("P3", 3, 1),
        ("P4", 1, 1),
        ("B5", 1, 1),
        ("P6", 2, 1),
        ("B7", 1, 2),
        ("B8", 2, 1),
    ]


def test_drawing_equals_a_loop_over_blocks_and_pixels() -> None:
    rng = np.random.default_rng(0)
    vectors = np.zeros(200, dtype=FIELDS)
    for vector in vectors:
        width, height = rng.choice([8, 16], 2).tolist()
        left, top = 8 * rng.integers(-1, 9), 8 * rng.integers(-1, 7)  # some are partly outside
        vector["source"], vector["w"], vector["h"] = rng.choice([-1, 1]), width, height
        vector["dst_x"], vector["dst_y"] = left + width // 2, top + height // 2
        vector["motion_x"], vector["motion_y"] = rng.integers(-40, 40, 2)
        vector["motion_scale"] = 4
    vectors = vectors[:60]
    found = draw_motion(vectors, 50, 70, past=2, future=3)
    sums, counts = np.zeros((2, 50, 70)), np.zeros((50, 70))
    for one in vectors:
        factor = -1 / 2 if one["source"] < 0 else 1 / 3
        for y in range(one["dst_y"] - one["h"] // 2, one["dst_y"] + one["h"] // 2):
            for x in range(one["dst_x"] - one["w"] // 2, one["dst_x"] + one["w"] // 2):
                if 0 <= y < 50 and 0 <= x < 70:
                    sums[:, y, x] += np.array([one["motion_x"], one["motion_y"]]) / 4 * factor
                    counts[y, x] += 1
    assert (counts == 0).any() and (counts > 1).any()
    np.testing.assert_allclose(found, sums / np.maximum(counts, 1), atol=1e-5)


def test_a_quarter_turn_moves_pixels_and_vectors_together() -> None:
    motion = np.zeros((2, 4, 6), np.float32)
    motion[:, 0, 5] = 2.0, 1.0  # the upper right corner moves right and a little down
    turned = rotate(motion, 1)  # counter-clockwise: it becomes the upper left corner
    assert turned.shape == (2, 6, 4) and turned[:, 0, 0].tolist() == [1.0, -2.0]
    assert np.array_equal(rotate(turned, 3), motion)


def test_the_store_has_the_motion_in_stored_pixels_also_of_cuts_and_other_rates(tmp_path: Path) -> None:
    path = write_video(
        tmp_path / "a.mp4", panning(21), codec="libx264", options={"bf": "0", "refs": "1", "preset": "fast"}
    )
    inner = np.s_[1:, :, 16:-16, 16:-16]
    metadata, motion = convert_motion(path)
    assert (metadata.num_frames, metadata.num_flow) == (21, 20) and metadata.motion_bytes and metadata.motion_sha256
    assert np.median(motion[inner], axis=(0, 2, 3)) == pytest.approx([2, -1], abs=0.4)
    _, small = convert_motion(path, short_edge=32)
    assert np.median(small[1:, :, 8:-8, 8:-8], axis=(0, 2, 3)) == pytest.approx([1, -0.5], abs=0.4)
    metadata, cut = convert_motion(path, cut=(0.2, 0.6))
    assert metadata.num_frames == 10 and np.abs(cut - motion[5:14]).mean() < 0.3
    metadata, slow = convert_motion(path, fps=12.5)  # every second frame
    assert metadata.num_frames == 11
    assert np.median(slow[inner], axis=(0, 2, 3)) == pytest.approx([4, -2], abs=0.8)


def test_a_file_without_vectors_is_skipped_with_the_reason(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", panning(5), codec="mjpeg", pixel_format="yuvj420p")
    with pytest.raises(StageError) as error:
        convert_motion(path)
    assert error.value.stage == "motion" and "mjpeg" in error.value.reason


def test_the_bound_by_motion_needs_flow() -> None:
    with pytest.raises(ValueError, match="motion vectors only"):
        info_of(flow_bound="auto")
    assert info_of("rgb,flow,motion", flow_bound="auto").quantized is not None


@pytest.mark.slow
def test_preprocess_stores_motion_beside_flow_and_files_read_alike(tmp_path: Path) -> None:
    for number in range(2):
        write_video(tmp_path / "videos" / "pan" / f"v{number}.avi", panning(8, (2 + number, 0)))
    command = ["preprocess", tmp_path / "videos", "-o", tmp_path / "clips", "--modalities", "rgb,flow,motion"]
    result = run_cli(*command, "--flow-backend", "dis", "--flow-bound", "auto", "--workers", 1)
    assert result.returncode == 0, result.stdout + result.stderr
    store = ClipStore.open(tmp_path / "clips")
    assert store.modalities == ("rgb", "flow", "motion") and store.info.motion is not None
    assert check_store(store) == []
    record = next(one for one in store.records if one.video_id.endswith("v1"))
    motion, flow = (store.read(record, name, range(7)) for name in ("motion", "flow"))
    for found in (motion, flow):
        assert float(found[1:, 0, 16:-16, 16:-16].median()) == pytest.approx(3, abs=0.5)
    residual = compensate_camera(
        store.read_raw(record, "motion", range(1, 7)),
        get_modality("residual_motion"),
        levels=store.flow_levels(record),
    )
    assert residual.flatten(2).median(2).values.unique().tolist() == [128], "the picture only pans"
    files = VideoFiles([tmp_path / "videos" / "pan" / "v1.avi"], store.info)
    again = files.read(files.records[0], "motion", range(7))
    assert float((again - motion).abs().mean()) < 0.2
    (tmp_path / "clips" / "motion" / f"{record.video_id}.mp4").write_bytes(b"damaged")
    assert len(check_store(store)) == 1
