"""PyAV and decord give the same frames, and odd files are handled."""

import struct
from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.clips.decoders import DECODERS, choose_decoder, open_video, valid_fps
from tests.factories import moving_square, write_video


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
def test_decoders_give_the_same_frames(tmp_path: Path, codec: str, ending: str) -> None:
    path = write_video(tmp_path / f"a.{ending}", moving_square(30), codec=codec)
    first, second = (all_frames(path, decoder) for decoder in DECODERS)
    assert first.shape == (30, 48, 64, 3)
    assert (first == second).all()


@pytest.mark.parametrize("decoder", DECODERS)
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


@pytest.mark.parametrize("decoder", DECODERS)
def test_all_frames_of_a_variable_frame_rate_are_read(tmp_path: Path, decoder: str) -> None:
    times = [0, 1, 2, 10, 11, 12, 30, 31, 50, 51]
    path = write_video(tmp_path / "a.mkv", moving_square(10), codec="libx264", times=times)
    assert len(all_frames(path, decoder)) == 10


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


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("content", [b"", b"this is no video", b"RIFF\0\0\0\0AVI LIST"])
def test_files_that_are_no_videos_are_refused(tmp_path: Path, decoder: str, content: bytes) -> None:
    (tmp_path / "a.avi").write_bytes(content)
    with pytest.raises(ValueError, match="cannot open|no video stream|no frames"):
        all_frames(tmp_path / "a.avi", decoder)


def test_wrong_decoders_and_paths_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'opencv'; choose from auto, av, decord"):
        choose_decoder("opencv")
    with pytest.raises(FileNotFoundError, match="nothing.avi"):
        open_video(tmp_path / "nothing.avi")


def test_absurd_frame_rates_become_the_default() -> None:
    from fractions import Fraction

    assert valid_fps(None) == valid_fps(Fraction(0)) == valid_fps(Fraction(90000)) == 25
    assert valid_fps(Fraction(30000, 1001)) == Fraction(30000, 1001)


@pytest.mark.real
def test_decoders_give_the_same_frames_of_real_clips(real_videos: Path) -> None:
    paths = sorted(real_videos.rglob("*.avi"))[::15]
    assert len(paths) >= 10
    for path in paths:
        first, second = (all_frames(path, decoder) for decoder in DECODERS)
        assert first.shape == second.shape, path
        # They bundle different releases of FFmpeg, whose MPEG-4 decoders round differently in rare blocks.
        difference = np.abs(first.astype(np.int16) - second)
        assert difference.max() <= 2 and (difference > 0).mean() < 1e-4, path
