"""One video -> the files of its clip."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.flow_codec import FlowLevels, unstack_components
from covid_cmsf.clips.records import FlowInfo, StoreInfo
from covid_cmsf.files import file_sha256
from preprocess.convert import CHUNK_SIZE, ClipMetadata, StageError, chunk_size, convert, spread_pairs, stored_size
from preprocess.encode import ClipWriter
from preprocess.flow import FlowBackend, FlowParameters, make_flow, to_gray
from tests.factories import moving_square, write_video

LEVELS = FlowLevels(20.0)


def store_info(**changes: object) -> StoreInfo:
    flow = FlowInfo(backend="opencv", version="", parameters={}, bound=20.0, levels=255)
    values = {"modalities": ("rgb", "flow"), "short_edge": 0, "max_frames": 0, "quality": 18, "flow": flow, **changes}
    return StoreInfo.model_validate(values)


@pytest.fixture(scope="module")
def flow() -> FlowBackend:
    return make_flow("opencv", FlowParameters(warps=1, nscales=2, outer_iterations=1))


def convert_video(path: Path, backend: FlowBackend, **changes: object) -> tuple[ClipMetadata, dict[str, Path]]:
    targets = {name: path.with_name(f"{name}.mp4") for name in ("rgb", "flow")}
    info = store_info(**changes)
    return convert(path, targets, info, decoder="av", flow=backend if "flow" in info.modalities else None), targets


def test_n_frames_give_n_minus_1_flows_also_across_chunks(tmp_path: Path, flow: FlowBackend) -> None:
    frames = moving_square(CHUNK_SIZE + 3)
    metadata, targets = convert_video(write_video(tmp_path / "a.avi", frames), flow)
    assert (metadata.num_frames, metadata.num_flow, metadata.width, metadata.height) == (
        CHUNK_SIZE + 3,
        CHUNK_SIZE + 2,
        64,
        48,
    )
    with open_video(tmp_path / "a.avi") as video:
        source = np.stack(list(video.frames()))
    with open_video(targets["rgb"]) as video:
        assert np.abs(np.stack(list(video.frames())).astype(float) - source).mean() < 4
    expected = np.clip(flow(np.stack([to_gray(frame) for frame in source])), -20, 20)
    with open_video(targets["flow"]) as video:
        stored = LEVELS.decode(unstack_components(video.read_luma(range(metadata.num_flow))))
    assert stored.shape == expected.shape

    def error(flow: np.ndarray) -> float:
        return float(np.hypot(*(flow - expected).transpose(1, 0, 2, 3)).mean())

    # Closer to its own pair than no motion, exchanged axes or the neighboring pair would be.
    others = (np.zeros_like(expected), stored[:, ::-1], np.roll(stored, 1, axis=0))
    assert error(stored) < 0.14
    assert all(error(stored) < error(other) - 0.004 for other in others), [error(other) for other in others]
    assert metadata.source_sha256 == file_sha256(tmp_path / "a.avi")


def test_the_same_video_gives_the_same_bytes(tmp_path: Path, flow: FlowBackend) -> None:
    path = write_video(tmp_path / "a.avi", moving_square(8))
    _, targets = convert_video(path, flow)
    first = [targets[name].read_bytes() for name in targets]
    convert_video(path, flow)
    assert [targets[name].read_bytes() for name in targets] == first


def test_memory_is_bounded_whatever_the_frames_size(
    tmp_path: Path, flow: FlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [chunk_size(*size) for size in ((320, 240), (1920, 1080), (3840, 2160), (7680, 4320))] == [16, 16, 4, 2]
    path = write_video(tmp_path / "a.avi", moving_square(9))
    _, targets = convert_video(path, flow)
    whole = [targets[name].read_bytes() for name in targets]
    monkeypatch.setattr("preprocess.convert.CHUNK_PIXELS", 1)
    metadata, _ = convert_video(path, flow)
    assert metadata.num_flow == 8 and [targets[name].read_bytes() for name in targets] == whole


def test_larger_frames_than_8k_are_refused(tmp_path: Path, flow: FlowBackend) -> None:
    path = write_video(
        tmp_path / "a.mkv", np.zeros((2, 6002, 6002, 3), np.uint8), codec="mjpeg", pixel_format="yuvj420p"
    )
    with pytest.raises(StageError) as caught:
        convert_video(path, flow, short_edge=32)
    assert caught.value.stage == "decode" and "6002x6002 are too large: at most 36000000" in caught.value.reason


@pytest.mark.parametrize(
    ("size", "short_edge", "expected"),
    [
        ((320, 240), 0, (320, 240)),
        ((321, 241), 0, (320, 240)),
        ((320, 240), 160, (214, 160)),
        ((240, 320), 160, (160, 214)),
        ((64, 48), 96, (128, 96)),
        ((2, 1000), 16, (16, 8000)),
    ],
)
def test_stored_sizes_are_even_and_keep_the_aspect(
    size: tuple[int, int], short_edge: int, expected: tuple[int, int]
) -> None:
    assert stored_size(*size, short_edge) == expected


@pytest.mark.parametrize(("changes", "size"), [({}, (46, 62)), ({"short_edge": 24}, (24, 32))])
def test_odd_sizes_and_resizing(
    tmp_path: Path, flow: FlowBackend, changes: dict[str, int], size: tuple[int, int]
) -> None:
    path = write_video(tmp_path / "a.mkv", moving_square(4, width=63, height=47), codec="ffv1", pixel_format="yuv444p")
    metadata, targets = convert_video(path, flow, **changes)
    assert (metadata.height, metadata.width) == size
    with open_video(targets["rgb"]) as video:
        assert next(iter(video.frames())).shape == (*size, 3)


def test_max_frames_and_single_modalities(tmp_path: Path, flow: FlowBackend) -> None:
    path = write_video(tmp_path / "a.avi", moving_square(10))
    metadata, _ = convert_video(path, flow, max_frames=4)
    assert (metadata.num_frames, metadata.num_flow) == (4, 3)
    metadata, targets = convert_video(path, flow, modalities=("rgb",), flow=None)
    assert metadata.num_flow == 0
    targets["rgb"].unlink()
    metadata, targets = convert_video(path, flow, modalities=("flow",))
    assert metadata.num_flow == 9 and not targets["rgb"].exists()


def test_a_video_of_one_frame_has_no_motion(tmp_path: Path, flow: FlowBackend) -> None:
    path = write_video(tmp_path / "a.avi", moving_square(1))
    with pytest.raises(StageError, match="one frame only"):
        convert_video(path, flow)
    metadata, _ = convert_video(path, flow, modalities=("rgb",), flow=None)
    assert metadata.num_frames == 1


def test_a_truncated_video_keeps_what_can_be_read(tmp_path: Path, flow: FlowBackend) -> None:
    path = write_video(tmp_path / "a.avi", moving_square(40))
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    metadata, _ = convert_video(path, flow, modalities=("rgb",), flow=None)
    assert 1 < metadata.num_frames < 40 and metadata.header_frames == 40


@pytest.mark.parametrize("seed", range(4))
def test_a_bit_flipped_video_is_converted_or_skipped(tmp_path: Path, flow: FlowBackend, seed: int) -> None:
    path = write_video(tmp_path / "a.mp4", moving_square(40), codec="libx264")
    data = bytearray(path.read_bytes())
    for position in np.random.default_rng(seed).integers(48, len(data), 60):
        data[position] ^= 0xFF
    path.write_bytes(bytes(data))
    try:
        metadata, targets = convert_video(path, flow, modalities=("rgb",), flow=None)
    except StageError as error:
        assert error.stage in ("open", "decode") and error.reason
    else:
        with open_video(targets["rgb"]) as video:
            assert len(list(video.frames())) == metadata.num_frames


@pytest.mark.parametrize("name", ["empty.avi", "text.avi", "gone.avi", "folder.avi"])
def test_files_that_are_no_videos_fail_in_the_stage_open(tmp_path: Path, flow: FlowBackend, name: str) -> None:
    path = tmp_path / name
    if name == "folder.avi":
        path.mkdir()
    elif name != "gone.avi":
        path.write_bytes(b"no video at all" if name == "text.avi" else b"")
    with pytest.raises(StageError) as error:
        convert_video(path, flow)
    assert error.value.stage == "open"


def test_an_unreadable_file_fails_in_the_stage_open(
    tmp_path: Path, flow: FlowBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "a.avi", moving_square(3))

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("av.open", refuse)  # root may read everything, so permissions alone prove nothing
    with pytest.raises(StageError, match="Permission denied"):
        convert_video(path, flow)


def test_a_codec_that_nobody_knows_is_named(tmp_path: Path, flow: FlowBackend) -> None:
    path = write_video(tmp_path / "a.mp4", moving_square(3), codec="libx264")
    path.write_bytes(path.read_bytes().replace(b"avc1", b"zzzz"))
    with pytest.raises(StageError, match="no decoder for the codec"):
        convert_video(path, flow)


def test_a_wrong_ending_does_not_matter(tmp_path: Path, flow: FlowBackend) -> None:
    path = write_video(tmp_path / "a.mp4", moving_square(4), codec="libx264")
    metadata, _ = convert_video(path.rename(tmp_path / "b.avi"), flow)
    assert metadata.num_frames == 4


def test_the_writer_keeps_every_gray_level(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(256, dtype=np.uint8), (64, 1))
    with ClipWriter(tmp_path / "a.mp4", fps=Fraction(25), width=256, height=64, crf=1, tune_psnr=True) as writer:
        writer.write_luma(ramp)
        writer.write_luma(ramp[:, ::-1].copy())
    for decoder in ("av", "decord"):
        with open_video(tmp_path / "a.mp4", decoder) as video:
            stored = video.read_luma([0, 1])
        assert (
            np.abs(stored[0].astype(int) - ramp).max() <= 1 and np.abs(stored[1, :, ::-1].astype(int) - ramp).max() <= 1
        )


class GivenFlow:
    """A backend that returns what a function makes of the number of pairs and the frame size."""

    name = "given"

    def __init__(self, function: Callable[[int, int, int], np.ndarray]) -> None:
        self._function, self.sizes = function, set[tuple[int, int]]()

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        count, height, width = frames.shape
        self.sizes.add((height, width))
        return self._function(count - 1, height, width).astype(np.float32)


def read_levels(targets: dict[str, Path], num_flow: int) -> np.ndarray:
    with open_video(targets["flow"]) as video:
        return unstack_components(video.read_luma(range(num_flow)))


def test_a_still_video_and_a_still_half_read_as_exactly_zero(tmp_path: Path, flow: FlowBackend) -> None:
    """Codec included; only within a macroblock (16 pixels) of motion it may change zero by a few levels."""
    still = np.repeat(moving_square(1, width=160, height=96), 10, axis=0)
    metadata, targets = convert_video(write_video(tmp_path / "a.avi", still, codec="ffv1"), flow)
    assert (read_levels(targets, metadata.num_flow) == 128).all()
    rng = np.random.default_rng(0)

    half_moving = GivenFlow(lambda n, h, w: rng.normal(0, 3, (n, 2, h, w)) * (np.arange(w) < 80))
    metadata, targets = convert_video(write_video(tmp_path / "b.avi", still), half_moving)
    levels = read_levels(targets, metadata.num_flow).astype(int)
    assert (levels[..., 80 + 16 :] == 128).all() and (levels[..., :80] != 128).any()
    assert np.abs(levels[..., 80:] - 128).max() <= 16


@pytest.mark.parametrize("bound", ["size", "auto"])
def test_the_bound_is_that_of_the_video_and_recorded(tmp_path: Path, flow: FlowBackend, bound: str) -> None:
    made = FlowInfo.model_validate(
        {"backend": "opencv", "version": "", "parameters": {}, "bound": bound, "levels": 255}
    )
    path = write_video(tmp_path / "a.avi", moving_square(9), codec="ffv1")
    metadata, targets = convert_video(path, flow, flow=made, quality=0)
    with open_video(path) as video:
        expected = flow(np.stack([to_gray(frame) for frame in video.frames()]))
    percentile = max(np.percentile(np.abs(expected), 99.9), 0.2)
    assert metadata.flow_bound == pytest.approx(4.0 if bound == "size" else percentile, abs=1e-4)
    stored = FlowLevels(metadata.flow_bound).decode(read_levels(targets, metadata.num_flow))
    clipped = np.clip(expected, -metadata.flow_bound, metadata.flow_bound)
    assert np.abs(stored - clipped).max() <= metadata.flow_bound / 254 + 1e-5  # quality 0 is lossless for flow


@pytest.mark.parametrize(("count", "expected"), [(1, 0), (2, 1), (17, 16), (18, 9), (100, 13)])
def test_pairs_are_spread_over_a_video_of_unknown_length(count: int, expected: int) -> None:
    frames = [np.full((2, 2), i, np.uint8) for i in range(count)]
    pairs = spread_pairs(iter(frames))
    firsts = [int(first[0, 0]) for first, _ in pairs]
    assert len(pairs) == expected and all(second[0, 0] == first[0, 0] + 1 for first, second in pairs)
    assert len(set(np.diff(firsts).tolist())) <= 1 and (not firsts or count - 2 - firsts[-1] < 8)


def test_native_flow_is_computed_before_resizing_and_stored_in_stored_pixels(tmp_path: Path) -> None:
    uniform = GivenFlow(lambda n, h, w: np.ones((n, 2, h, w)) * np.array([4.0, -2.0]).reshape(2, 1, 1))
    made = {"backend": "opencv", "version": "", "parameters": {}, "bound": 2.0, "levels": 255}
    path = write_video(tmp_path / "a.avi", moving_square(5, width=96, height=64), codec="ffv1")
    metadata, targets = convert_video(path, uniform, flow={**made, "size": "native"}, short_edge=16, quality=0)
    assert uniform.sizes == {(64, 96)} and (metadata.width, metadata.height) == (24, 16)
    stored = FlowLevels(2.0).decode(read_levels(targets, 4))
    assert np.abs(stored - np.array([1.0, -0.5]).reshape(2, 1, 1)).max() <= 1 / 127
    uniform.sizes.clear()
    rgb = targets["rgb"].read_bytes()
    convert_video(path, uniform, flow={**made, "size": "stored"}, short_edge=16, quality=0)
    assert uniform.sizes == {(16, 24)} and targets["rgb"].read_bytes() == rgb


@pytest.mark.real
def test_real_flow_comes_back_within_the_stated_error_and_size(tmp_path: Path, real_videos: Path) -> None:
    flow = make_flow("numba")
    errors, num_bytes, num_frames = [], 0, 0
    for folder in sorted(real_videos.iterdir()):
        path = sorted(folder.glob("*.avi"))[7]
        targets = {name: tmp_path / f"{name}.mp4" for name in ("rgb", "flow")}
        metadata = convert(path, targets, store_info(max_frames=12), decoder="av", flow=flow)
        with open_video(path) as video:
            gray = np.stack([to_gray(frame) for frame, _ in zip(video.frames(), range(12), strict=False)])
        expected = np.clip(flow(gray), -20, 20)
        with open_video(targets["flow"]) as video:
            stored = LEVELS.decode(unstack_components(video.read_luma(range(metadata.num_flow))))
        errors.append(float(np.hypot(*(stored - expected).transpose(1, 0, 2, 3)).mean()))
        num_bytes += sum(target.stat().st_size for target in targets.values())
        num_frames += metadata.num_frames + metadata.num_flow
    assert len(errors) == 6 and max(errors) < 0.15, errors
    assert num_bytes / num_frames < 17_000 / 5
