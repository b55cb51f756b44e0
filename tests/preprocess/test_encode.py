"""Encoding: the same frames give the same bytes, whatever the CPU and its memory hold."""

from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from preprocess import encode as encode_module
from preprocess.encode import CPU_AVX512F, ClipWriter, instruction_set_options

# None of them is a multiple of 16, the size of x264's blocks; 72x54 is where AVX-512 gave different files.
SIZES = [(72, 54), (34, 18), (86, 66), (2, 2), (18, 130)]


def encode(path: Path, frames: NDArray[np.uint8], *, gray: bool = False) -> bytes:
    """Write frames (T, H, W, 3) as RGB, or their first channel as a luma plane; return the file's bytes."""
    height, width = frames.shape[1:3]
    with ClipWriter(path, fps=Fraction(25), width=width, height=height, crf=18, tune_psnr=gray) as writer:
        for frame in frames:
            if gray:
                writer.write_luma(frame[..., 0])
            else:
                writer.write_rgb(frame)
    return path.read_bytes()


@pytest.mark.parametrize("gray", [False, True], ids=["rgb", "luma"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_many_encodings_of_odd_sizes_give_the_same_bytes(tmp_path: Path, size: tuple[int, int], gray: bool) -> None:
    rng = np.random.default_rng(0)
    frames = cv2.resize(rng.integers(0, 256, (12, 8, 9), dtype=np.uint8).astype(np.float32), size).astype(np.uint8)
    frames = np.stack([np.roll(frames, shift, axis=1) for shift in range(3)])[..., :3]
    first = encode(tmp_path / "a.mp4", frames, gray=gray)
    others = set()
    for number in range(400 if size == SIZES[0] and gray else 40):
        memory = [
            np.full(1 << (12 + number % 8), number % 256, np.uint8) for _ in range(8)
        ]  # what x264 may find in memory
        del memory
        others.add(encode(tmp_path / "b.mp4", frames, gray=gray))
    assert others == {first}


def capabilities(tmp_path: Path) -> set[str]:
    """The instruction sets that x264 says it uses."""
    level = av.logging.get_level()
    av.logging.set_level(av.logging.VERBOSE)
    try:
        with av.logging.Capture() as lines:
            encode(tmp_path / "a.mp4", np.zeros((1, 16, 16, 3), np.uint8))
    finally:
        av.logging.set_level(level)
    (line,) = [text for _, _, text in lines if "using cpu capabilities:" in text]
    return set(line.split(":", 1)[1].split())


def test_x264_does_not_use_avx512(tmp_path: Path) -> None:
    assert "AVX512" not in capabilities(tmp_path)


def test_the_writer_hands_the_limit_to_x264(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit that every CPU can follow: no instruction set at all."""
    assert capabilities(tmp_path) != {"none!"}
    monkeypatch.setattr(encode_module, "instruction_set_options", lambda: {"x264-params": "asm=0"})
    assert capabilities(tmp_path) == {"none!"}


@pytest.mark.parametrize("has_avx512", [False, True])
def test_the_limit_is_set_only_where_it_takes_something_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_avx512: bool
) -> None:
    before = capabilities(tmp_path)
    monkeypatch.setattr(cv2, "checkHardwareSupport", lambda feature: has_avx512 and feature == CPU_AVX512F)
    assert instruction_set_options() == ({"x264-params": "asm=avx2"} if has_avx512 else {})
    if not has_avx512 or "AVX2" in before:  # `asm=avx2` on an older CPU ends the process: see encode.py
        assert capabilities(tmp_path) - {"AVX512"} == before
