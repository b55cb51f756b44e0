"""Decode video files with torchcodec (extra `torchcodec`), on the CPU or, for RGB, on a GPU.

It needs FFmpeg's shared libraries on the system. Decoding on a GPU has never been run. Version 0.17 cannot read the
last frame of files whose frames are reordered and have no time stamps, as some AVI files of UCF-101: these are refused.
The MP4 files of a clip store have time stamps.
Shapes: T frames, H x W pixels.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from typing_extensions import Self

from covid_cmsf.clips.decoders import AvReader, Frames

INSTALL = "install it with `pip install torchcodec`, and FFmpeg's shared libraries (Debian: `apt install ffmpeg`)"


def check_torchcodec(name: str) -> None:
    """Raise ValueError unless torchcodec can be imported, and the device of `torchcodec:DEVICE` is there."""
    try:
        import torchcodec  # noqa: F401
    except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: FFmpeg's libraries are missing
        raise ValueError(f"decoder 'torchcodec' cannot be loaded ({type(error).__name__}); {INSTALL}") from None
    device = device_of(name)
    if device not in ("cpu", "cuda") and not device.removeprefix("cuda:").isdigit():
        raise ValueError(f"unknown decoder {name!r}; choose from torchcodec, torchcodec:cuda, torchcodec:cuda:1, ...")
    if device != "cpu" and not torch.cuda.is_available():
        raise ValueError(f"decoder {name!r}: PyTorch finds no GPU; use torchcodec")


def device_of(name: str) -> str:
    """Return the device in the name of a decoder: `torchcodec:cuda`."""
    return name.partition(":")[2] or "cpu"


class TorchcodecReader:
    """`VideoReader` on torchcodec. Luma is decoded on the CPU, by PyAV on a GPU's behalf: it must be exact."""

    def __init__(self, path: Path, device: str = "cpu") -> None:
        from torchcodec.decoders import VideoDecoder

        self._path, self._on_gpu = path, device != "cpu"
        with AvReader(path) as probe:  # the exact frame rate, the number of frames in the header, the rotation
            self.fps, self.header_frames = probe.fps, probe.header_frames
            if probe.rotation():
                raise ValueError("the video is rotated; use the decoder av")
        try:
            self._decoder = VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, device=device)
        except (RuntimeError, ValueError) as error:
            raise ValueError(f"cannot open as a video: {_first_line(error)}") from error

    def frames(self, *, start: float = 0.0, end: float = math.inf, fps: float = 0.0) -> Iterator[Frames]:
        if start > 0 or end != math.inf or fps:
            raise ValueError("torchcodec is not used to cut or resample; use the decoder av")
        for number in range(len(self._decoder)):
            yield self.read_rgb([number])[0]

    def read_rgb(self, frame_indices: Sequence[int]) -> Frames:
        if len(frame_indices) and max(frame_indices) >= len(self._decoder):
            raise ValueError(f"frame {max(frame_indices)} is not in the file")
        try:
            batch = self._decoder.get_frames_at(list(frame_indices))
        except (RuntimeError, IndexError) as error:
            raise ValueError(f"decoding stopped: {_first_line(error)} The decoder av may read it") from error
        frames: Frames = batch.data.cpu().numpy()
        return frames

    def read_luma(self, frame_indices: Sequence[int]) -> Frames:
        if self._on_gpu:
            with AvReader(self._path) as video:
                return video.read_luma(frame_indices)
        return np.ascontiguousarray(self.read_rgb(frame_indices)[..., 1])  # a gray picture: R = G = B

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._decoder


def _first_line(error: Exception) -> str:
    """Return the first line of an error without the source file that torchcodec puts before it."""
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return line.rpartition(".cpp:")[2].partition(", ")[2] or line
