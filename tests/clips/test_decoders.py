"""PyAV, decord and torchcodec give the same frames, and odd files are handled."""

import math
import struct
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import av
import cv2
import numpy as np
import pytest
import torch

from covid_cmsf.clips.containers import open_container, stream_fps, to_fraction, valid_fps
from covid_cmsf.clips.decoders import AvReader, choose_decoder, header_seconds, open_video, sort_time_stamps
from preprocess.encode import ClipWriter
from tests.factories import moving_square, write_video


def has_torchcodec() -> bool:
    try:
        return choose_decoder("torchcodec") == "torchcodec"
    except ValueError:
        return False


WITHOUT = pytest.mark.skipif(not has_torchcodec(), reason="torchcodec or FFmpeg's shared libraries are not installed")
AVAILABLE = ["av", "decord", pytest.param("torchcodec", marks=WITHOUT)]


def all_frames(path: Path, decoder: str) -> np.ndarray:
    with open_video(path, decoder) as video:
        return np.stack(list(video.frames()))


def rotate_header(path: Path) -> None:
    """Writes a display matrix of 90 degrees into an MP4's track header."""
    data = bytearray(path.read_bytes())
    matrix = data.index(b"tkhd") + 4 + 40
    one = 1 << 16
    data[matrix : matrix + 36] = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 1 << 30)
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(("codec", "ending"), [("mpeg4", "avi"), ("libx264", "mp4"), ("libx264", "mkv")])
@pytest.mark.parametrize("decoder", AVAILABLE[1:])
def test_decoders_give_the_same_frames(tmp_path: Path, codec: str, ending: str, decoder: str) -> None:
    path = write_video(tmp_path / f"a.{ending}", moving_square(30), codec=codec)
    first, second = (all_frames(path, decoder) for decoder in ("av", decoder))
    assert first.shape == (30, 48, 64, 3)
    assert (first == second).all()


def opencv_frames(path: Path) -> np.ndarray:
    video = cv2.VideoCapture(str(path))
    frames: list[np.ndarray] = []
    while True:
        there, frame = video.read()
        if not there:
            return np.stack(frames)
        frames.append(frame[..., ::-1])


@pytest.mark.parametrize("decoder", AVAILABLE)
@pytest.mark.parametrize(("codec", "ending"), [("mpeg4", "avi"), ("libx264", "mp4")])
def test_decoders_give_the_frames_of_opencv(tmp_path: Path, codec: str, ending: str, decoder: str) -> None:
    path = write_video(tmp_path / f"a.{ending}", moving_square(30), codec=codec)
    ours, opencv = all_frames(path, decoder), opencv_frames(path)
    assert ours.shape == opencv.shape
    # The same pixels; conversion to RGB rounds differently between releases of FFmpeg.
    assert np.abs(ours.astype(np.int16) - opencv).max() <= 2


@pytest.mark.parametrize("decoder", AVAILABLE)
def test_single_frames_equal_the_sequence(tmp_path: Path, decoder: str) -> None:
    path = write_video(tmp_path / "a.mp4", moving_square(60), codec="libx264")
    frames = all_frames(path, decoder)
    with open_video(path, decoder) as video:
        for numbers in ([0], [59], [5, 6, 7], [50, 3, 3, 41], list(range(10, 42))):
            assert (video.read_rgb(numbers) == frames[numbers]).all()
        with pytest.raises(ValueError, match="frame 60 is not in the file"):
            video.read_rgb([60])


def test_rotated_videos_come_out_upright(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving_square(5), codec="libx264")
    lying = all_frames(path, "av")
    rotate_header(path)
    assert (all_frames(path, "av") == np.rot90(lying, k=-1, axes=(1, 2))).all()  # a quarter turn clockwise
    with pytest.raises(ValueError, match="rotated.*use the decoder av"):
        all_frames(path, "decord")


@pytest.mark.parametrize("decoder", AVAILABLE)
def test_all_frames_of_a_variable_frame_rate_are_read(tmp_path: Path, decoder: str) -> None:
    times = [0, 1, 2, 10, 11, 12, 30, 31, 50, 51]
    path = write_video(tmp_path / "a.mkv", moving_square(10), codec="libx264", times=times)
    assert len(all_frames(path, decoder)) == 10


@pytest.mark.parametrize(
    ("codec", "ending"),
    [("mpeg4", "avi"), ("libx264", "mp4"), ("libx264", "mkv"), ("libx264", "ts"), ("mpeg2video", "mpg")],
)
def test_a_cut_has_the_frames_of_the_whole_video_between_its_times(tmp_path: Path, codec: str, ending: str) -> None:
    path = write_video(tmp_path / f"a.{ending}", moving_square(100), codec=codec)
    whole = all_frames(path, "av")
    assert len(whole) == 100
    for start, end in ((0, 0.4), (0.4, 0.8), (1.04, 1.2), (2.5, 3.12), (3.96, 9), (3, math.inf)):
        expected = [frame for number, frame in enumerate(whole) if start <= number / 25 < end]
        with open_video(path) as video:
            found = list(video.frames(start=start, end=end))
        assert len(found) == len(expected) and np.array_equal(found, expected), (start, end)
    with open_video(path) as video:
        assert list(video.frames(start=5)) == []
    assert header_seconds(path) == pytest.approx(4, abs=0.2)


def test_a_cut_of_a_variable_frame_rate_goes_by_time(tmp_path: Path) -> None:
    times = [0, 1, 2, 10, 20, 30, 31, 32, 60, 75]  # of 1/25 s
    path = write_video(tmp_path / "a.mkv", moving_square(10), codec="libx264", times=times)
    whole = all_frames(path, "av")
    with open_video(path) as video:
        assert np.array_equal(list(video.frames(start=0.4, end=1.28)), whole[3:7])


def test_exchanged_and_missing_time_stamps_are_put_in_order() -> None:
    found = [1, 3, 4, 2, 6, 7, 5, 9, 10, 8, 12, 13, 11, 15, 14, 17, 16]  # of a clip of UCF-101
    frames: list[Any] = [SimpleNamespace(pts=pts) for pts in found]
    timed = list(sort_time_stamps(frames, 1, ticks=1))
    assert [frame for frame, _ in timed] == frames and [pts for _, pts in timed] == sorted(found)
    unknown: list[Any] = [SimpleNamespace(pts=None) for _ in range(9)]
    assert [pts for _, pts in sort_time_stamps(unknown, 0, ticks=3)] == list(range(0, 27, 3))


def test_decord_has_no_cuts_and_no_video_has_no_length(tmp_path: Path) -> None:
    pytest.importorskip("decord")
    path = write_video(tmp_path / "a.avi", moving_square(5))
    with open_video(path, "decord") as video, pytest.raises(ValueError, match="use the decoder av"):
        next(video.frames(start=0.1))
    (tmp_path / "b.avi").write_bytes(b"broken")
    assert header_seconds(tmp_path / "b.avi") is None


@pytest.mark.parametrize("pixel_format", ["yuv444p", "yuv422p"])
def test_other_chroma_formats_are_read(tmp_path: Path, pixel_format: str) -> None:
    path = write_video(tmp_path / "a.mkv", moving_square(4), codec="libx264", pixel_format=pixel_format)
    assert all_frames(path, "av").shape == (4, 48, 64, 3)


def test_titles_in_forgotten_encodings_do_not_hide_the_frames(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", moving_square(4), metadata={"title": "TITLETITLE"})
    data = path.read_bytes()
    assert b"TITLETITLE" in data
    path.write_bytes(data.replace(b"TITLETITLE", b"caf\xe9\xff\xfe\x80ABC"))
    assert len(all_frames(path, "av")) == 4


@pytest.mark.parametrize("decoder", AVAILABLE)
@pytest.mark.parametrize("content", [b"", b"this is no video", b"RIFF\0\0\0\0AVI LIST"])
def test_files_that_are_no_videos_are_refused(tmp_path: Path, decoder: str, content: bytes) -> None:
    (tmp_path / "a.avi").write_bytes(content)
    with pytest.raises(ValueError, match="cannot open|no video stream|no frames"):
        all_frames(tmp_path / "a.avi", decoder)


@pytest.mark.parametrize("decoder", AVAILABLE[1:])
def test_the_luma_of_a_flow_picture_is_exact(tmp_path: Path, decoder: str) -> None:
    path, gray = tmp_path / "flow.mp4", np.random.default_rng(0).integers(0, 256, (6, 48, 64), dtype=np.uint8)
    with ClipWriter(path, fps=Fraction(25), width=64, height=48, crf=12) as writer:
        for frame in gray:
            writer.write_luma(frame)
    with open_video(path) as video:
        expected = video.read_luma([4, 0, 5])
    with open_video(path, decoder) as video:
        assert (video.read_luma([4, 0, 5]) == expected).all()


def test_a_torchcodec_that_cannot_be_loaded_is_explained_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    with pytest.raises(ValueError, match="cannot be loaded.*pip install torchcodec.*apt install ffmpeg") as raised:
        choose_decoder("torchcodec")
    assert "\n" not in str(raised.value)
    monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
    assert choose_decoder("torchcodec") == "torchcodec"
    with pytest.raises(ValueError, match="torchcodec:cuda': PyTorch finds no GPU"):
        choose_decoder("torchcodec:cuda")
    with pytest.raises(ValueError, match="unknown decoder 'torchcodec:tpu'"):
        choose_decoder("torchcodec:tpu")


@pytest.mark.parametrize(("name", "device"), [("torchcodec", "cpu"), ("torchcodec:cuda:1", "cuda:1")])
def test_torchcodec_decodes_on_the_device_of_its_name(
    name: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def stand_in(path: Path, **options: Any) -> SimpleNamespace:
        asked.append((path, options["device"]))
        return SimpleNamespace()

    decoders = ModuleType("torchcodec.decoders")
    decoders.VideoDecoder = stand_in  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchcodec", ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    path = write_video(tmp_path / "flow.mp4", moving_square(5), codec="libx264")
    with open_video(path, "av") as video:
        luma = video.read_luma([3, 0])
    with open_video(path, name) as video:
        assert asked == [(path, device)]
        if device != "cpu":  # flow must be exact: PyAV reads it
            assert (video.read_luma([3, 0]) == luma).all()


def test_pyav_is_what_decodes_unless_told_otherwise(tmp_path: Path) -> None:
    assert choose_decoder("auto") == "av"
    path = write_video(tmp_path / "a.mp4", moving_square(5), codec="libx264")
    with open_video(path, "auto") as chosen, open_video(path) as default:
        assert type(chosen) is type(default) is AvReader


def test_wrong_decoders_and_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'opencv'; choose from auto, av, decord"):
        choose_decoder("opencv")
    with pytest.raises(FileNotFoundError, match="nothing.avi"):
        open_video(tmp_path / "nothing.avi")


RATIONALS = [Fraction, *([av.AVRational] if hasattr(av, "AVRational") else [])]  # PyAV's own, since version 18


@pytest.mark.parametrize("rational", RATIONALS)
def test_absurd_frame_rates_become_the_default(rational: Callable[[int, int], Any]) -> None:
    assert valid_fps(None) == valid_fps(rational(0, 1)) == valid_fps(rational(90000, 1)) == 25
    rate = valid_fps(rational(30000, 1001))
    assert type(rate) is Fraction and rate == Fraction(30000, 1001)


@pytest.mark.parametrize("rational", RATIONALS[1:])
def test_unknown_rationals_of_pyav_are_no_number(rational: Callable[[int, int], Any]) -> None:
    assert [to_fraction(rational(*pair)) for pair in [(0, 1), (0, 0), (1, 0)]] == [None, None, None]
    assert to_fraction(rational(1, 90000)) == Fraction(1, 90000)


@pytest.mark.parametrize("suffix", ["mp4", "avi", "mkv"])
def test_rate_and_length_of_a_header_are_exact_numbers(tmp_path: Path, suffix: str) -> None:
    path = write_video(tmp_path / f"a.{suffix}", moving_square(9), fps=12)
    with open_container(path) as container:
        rate = stream_fps(container.streams.video[0])
    assert type(rate) is Fraction and rate == 12
    assert header_seconds(path) == pytest.approx(0.75, abs=0.01)


@pytest.mark.real
@pytest.mark.parametrize("decoder", AVAILABLE[1:])
def test_decoders_give_the_same_frames_of_real_clips(real_videos: Path, decoder: str) -> None:
    paths = sorted(real_videos.rglob("*.avi"))[::15]
    refused = []
    for path in paths:
        first = all_frames(path, "av")
        try:
            second = all_frames(path, decoder)
        except ValueError as error:
            assert decoder == "torchcodec" and "The decoder av may read it" in str(error)  # see torchcodec_reader
            refused.append(path)
            continue
        assert first.shape == second.shape, path
        # They bundle different releases of FFmpeg, whose MPEG-4 decoders round differently in rare blocks.
        difference = np.abs(first.astype(np.int16) - second)
        assert difference.max() <= 2 and (difference > 0).mean() < 2e-4, path
    assert len(paths) - len(refused) >= 8


@pytest.mark.real
def test_cuts_of_real_clips_have_the_frames_between_their_times(real_videos: Path) -> None:
    paths = sorted(real_videos.glob("*/*.avi"))[::25]
    assert paths
    for path in paths:
        whole = all_frames(path, "av")
        with open_video(path) as video:
            found = list(video.frames(start=0.5, end=1.5))
            expected = [frame for number, frame in enumerate(whole) if 0.5 <= number / video.fps < 1.5]
        assert np.array_equal(found, expected), path
