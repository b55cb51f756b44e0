"""Encode the store's video files: H.264 in MP4 with a short keyframe distance; any player opens them.

No B-frames: on real UCF-101 clips with a keyframe every 8 frames they make files larger and encoding twice as slow.
x264's `fastdecode` halves the decoding time, for 7 to 9% more bytes of RGB and 28% of flow. Flow is the luma of a
full-range image with neutral chroma, tuned for PSNR.

The same frames give the same bytes on one machine: one thread, and no AVX-512. With its AVX-512 code x264 gave three
different files for the same 72x54 frames in 400 encodings (core 165, an EPYC); limited to AVX2, 1,200 were equal.
"""

from fractions import Fraction
from pathlib import Path
from types import TracebackType

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from typing_extensions import Self

from covid_cmsf.clips.records import KEYFRAME_DISTANCE

FLOW_CRF_OFFSET = 3  # crf of RGB minus crf of flow
LOSSLESS = 0  # crf of spectrograms, which are small
FULL_RANGE = 2  # AVCOL_RANGE_JPEG: luma 0..255 means 0..255
PRESET = "veryfast"
CPU_AVX512F = 13  # OpenCV's number of this CPU feature


def instruction_set_options() -> dict[str, str]:
    """Return x264's options that keep it from AVX-512, on CPUs that have it.

    Elsewhere nothing is set: x264 believes `asm=avx2` without looking, so an older CPU would die of it.
    """
    return {"x264-params": "asm=avx2"} if cv2.checkHardwareSupport(CPU_AVX512F) else {}


class ClipWriter:
    """Write an MP4 file of one size and constant frame rate, frame by frame. Use it in a `with` block."""

    def __init__(
        self, path: Path, *, fps: Fraction, width: int, height: int, crf: int, tune_psnr: bool = False
    ) -> None:
        assert width % 2 == 0 and height % 2 == 0, "4:2:0 needs even sizes"
        self._container = av.open(str(path), "w", format="mp4")
        self._stream = self._container.add_stream("libx264", rate=fps)
        self._stream.width, self._stream.height, self._stream.pix_fmt = width, height, "yuv420p"
        self._stream.codec_context.thread_count = 1  # also makes the bytes reproducible
        self._stream.options = {
            "crf": str(crf),
            "preset": PRESET,
            "bf": "0",
            "g": str(KEYFRAME_DISTANCE),
            "sc_threshold": "0",  # no extra keyframes at scene cuts
            "tune": "psnr,fastdecode" if tune_psnr else "fastdecode",
            **instruction_set_options(),
        }
        self._time_base = 1 / fps
        self._reformatter = VideoReformatter()
        self.num_frames = 0

    def write_rgb(self, frame: NDArray[np.uint8]) -> None:
        """Append an (H, W, 3) RGB frame."""
        video_frame = av.VideoFrame.from_ndarray(frame, format="rgb24")
        self._encode(self._reformatter.reformat(video_frame, format="yuv420p", threads=1))

    def write_luma(self, frame: NDArray[np.uint8]) -> None:
        """Append a gray frame (H, W) as luma in full range, without conversion."""
        height, width = frame.shape
        neutral_chroma = np.full((height // 2, width), 128, np.uint8)
        video_frame = av.VideoFrame.from_ndarray(np.concatenate([frame, neutral_chroma]), format="yuv420p")
        self._stream.codec_context.color_range = FULL_RANGE
        video_frame.color_range = FULL_RANGE
        self._encode(video_frame)

    def _encode(self, video_frame: av.VideoFrame) -> None:
        video_frame.pts, video_frame.time_base = self.num_frames, self._time_base
        self._container.mux(self._stream.encode(video_frame))
        self.num_frames += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error_type is None:
                self._container.mux(self._stream.encode(None))
        finally:
            self._container.close()
