"""Features and flow straight from video files and frames, without a clip store."""

# T frames, H W pixels, N videos, D feature

from collections.abc import Callable, Collection, Iterator, Sequence
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from covid_cmsf.clips.audio_info import AudioInfo
from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.decoders import choose_decoder, open_video
from covid_cmsf.clips.flow_codec import FULL_BOUND, FlowLevels
from covid_cmsf.clips.names import escape_name
from covid_cmsf.clips.records import (
    FLOW_MODALITIES,
    MOTION_VECTORS,
    ClipRecord,
    Failure,
    FlowInfo,
    StoreInfo,
)
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.config import Config
from covid_cmsf.devices import choose_device
from covid_cmsf.evaluation.features.inference import evaluation_mode, video_features, window_features
from covid_cmsf.evaluation.features.model import wrap_encoder
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.video_dataset import DecodedVideo, VideoDataset
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.views.dataset import num_usable_frames
from preprocess.config import make_store_flow
from preprocess.convert import (
    StageError,
    file_audio,
    file_motion,
    flow_frames,
    resize_flow,
    sample_motion,
    stored_fps,
    stored_frames,
)
from preprocess.flow import FlowParameters, algorithm_name, choose_backend, make_flow, parameters_class, to_gray
from preprocess.motion_vectors import MotionReader

Frame = NDArray[np.uint8]


def embed(
    videos: str | Path | Sequence[str | Path],
    encoder: nn.Module,
    *,
    windows: int | None = None,
    modality: str | None = None,
    like: ClipStore | None = None,
    short_edge: int | None = None,
    flow_backend: str | None = None,
    batch_size: int = 16,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return the feature (D,) of a video file, or (N, D) of several files, as `extract_features` computes it.

    The encoder's metadata says what it takes: modality, clip length, stride, size and normalization. For a flow
    encoder TV-L1 flow is computed on the fly. A video shorter than a clip is padded with its first frame. The feature
    is the mean over the windows of the unit-length features; `torch.nn.functional.normalize` it to compare by cosine.

    Args:
        videos: one path, or several.
        encoder: what `load_encoder` returns, or any module with `metadata`. Its training mode is restored afterwards.
        windows: clips per video, evenly spread; 4 when left out, 1 for a single-frame encoder.
        modality: rgb, flow, residual_flow, motion, residual_motion, rgbdiff or frame, for weights that do not
            say what they were trained on.
        like: the clip store that the encoder was trained on: the same short edge, flow bound and TV-L1 parameters. Only
            needed for weights without this metadata: those of version 0.1.0 and of other projects.
        short_edge: resize frames to this short edge first, 0 is native; default: as in training, or native if unknown.
            Flow is in pixels, so it must be that of the clips that a flow encoder was trained on.
        flow_backend: auto, numba, numba-fast, torch or opencv (TV-L1), dis or farneback.
        batch_size: windows that pass the network together.
        device: move the encoder there; where it is when left out.

    Raises:
        ValueError: a file is no video or has too few frames, or the encoder has no metadata.

    Example:
        >>> encoder = cc.load_encoder("encoder.safetensors")
        >>> feature = cc.embed("my.mp4", encoder)
        >>> feature.shape == (encoder.num_features,)
        True
    """
    single = isinstance(videos, str | Path)
    paths = [Path(path) for path in ([videos] if isinstance(videos, str | Path) else videos)]
    if not paths:
        raise ValueError("no video files to embed")
    metadata = wrap_encoder(encoder).metadata
    eval_protocol = build_eval_protocol(metadata, modality=modality, num_windows=windows)
    clips = VideoFiles(paths, file_settings(metadata, like=like, short_edge=short_edge, flow_backend=flow_backend))
    data = VideoDataset(clips, clips.records, ["test"] * len(paths), eval_protocol)
    for path, record in zip(paths, clips.records, strict=True):
        if num_usable_frames(record, [data.modality]) < 1:
            needed = 2 if data.modality.is_flow or data.modality.frame_difference else 1
            raise ValueError(f"{path} has {record.num_frames} frames; {eval_protocol.modality} needs at least {needed}")
    with evaluation_mode(encoder):
        place = _device_of(encoder) if device is None else choose_device(str(device))
        outputs = window_features(encoder, data, _read_all(data, paths), batch_size=batch_size, device=place)
    features = video_features(outputs.windows, outputs.window_videos, len(paths))
    return features[0] if single else features


def optical_flow(
    frames: Tensor | NDArray[np.uint8],
    *,
    backend: str = "auto",
    parameters: Config | None = None,
    device: str | None = None,
) -> Tensor:
    """Return the optical flow (T - 1, 2, H, W) from each frame to the next, float32 pixels, x first.

    Args:
        frames: uint8, at least two: RGB (T, H, W, 3) or (T, 3, H, W), or gray (T, H, W).
        backend: TV-L1 by auto, numba (equal to OpenCV's to the last bit), numba-fast, torch (any device) or opencv;
            or another algorithm: dis, farneback, raft.
        parameters: those of the backend, for TV-L1 `FlowParameters`; its defaults when left out.
        device: for the backends torch and raft; a GPU where there is one.

    Example:
        >>> frames = torch.randint(0, 256, (3, 60, 80, 3), dtype=torch.uint8)
        >>> cc.optical_flow(frames, backend="opencv").shape
        torch.Size([2, 2, 60, 80])
    """
    array = frames.cpu().numpy() if isinstance(frames, Tensor) else frames
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise ValueError(
            f"frames are {array.dtype} {array.shape}; uint8 (T, H, W, 3), (T, 3, H, W) or (T, H, W) needed"
        )
    if len(array) < 2:
        raise ValueError(f"{len(array)} frames; flow needs at least 2")
    if array.ndim == 4:
        channels_last = array.shape[-1] == 3
        array = to_gray(array if channels_last else array.transpose(0, 2, 3, 1))
    return torch.from_numpy(make_flow(backend, parameters, device=device)(np.ascontiguousarray(array)))


class VideoFiles(Clips):
    """Video files as clips. Frames and flow are those that a clip store with the settings `info` would encode.

    Opening decodes every file once to count its frames: headers are often wrong.

    Example:
        >>> clips = cc.VideoFiles(["my.mp4"], cc.open_clips("clips/ucf101").info)
        >>> clips.read(clips.records[0], "flow", [0, 1]).shape
        torch.Size([2, 2, 48, 64])
    """

    info: StoreInfo

    def __init__(
        self,
        paths: Sequence[Path | str],
        info: StoreInfo,
        *,
        ids: Sequence[str] | None = None,
        skip_unreadable: bool = False,
        on_video: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the files.

        Args:
            paths: of the files.
            info: settings of a store with flow or motion vectors; `file_settings` has those of an encoder.
            ids: video ids; made of the number and the file's name when left out.
            skip_unreadable: list files that can't be decoded in `failures`, instead of raising ValueError.
            on_video: called after every file.
        """
        if info.quantized is None:
            raise ValueError("these settings have no flow: give those of a store with flow or motion vectors")
        moving = [name for name in FLOW_MODALITIES if info.origin_of(name) is not None]
        self.info, self.modalities = info, ("rgb", *moving, *(["audio"] if info.audio is not None else []))
        self.flow_bound = info.quantized.bound if isinstance(info.quantized.bound, float) else 0.0
        self._flow_info, self._levels = info.quantized, dict[str, FlowLevels]()
        files = [Path(path) for path in paths]
        names = [f"{number}/{escape_name(path.name)}" for number, path in enumerate(files)] if ids is None else ids
        self._paths = dict(zip(names, files, strict=True))
        self.failures: list[Failure] = []
        records = []
        for video_id, path in self._paths.items():
            try:
                records.append(self._make_record(video_id, path))
            except (ValueError, OSError) as error:
                if not skip_unreadable:
                    raise
                self.failures.append(Failure(video_id, "decode", str(error)))
            on_video()
        self.records = records
        self.splits = {"all": dict.fromkeys(self._paths, "test")}

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the video file."""
        return [self._paths[record.video_id]]

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return uint8 `rgb` (T, 3, H, W), or quantized `flow` or `motion` (T, 2, H, W), or `audio` (T, 1, H, W)."""
        check_request(record, modality, frame_indices, self.modalities)
        path = self._paths[record.video_id]
        if modality == "rgb":
            frames = self._decode(path, set(frame_indices), lambda frame: frame)
            return torch.from_numpy(np.stack([frames[number] for number in frame_indices])).permute(0, 3, 1, 2)
        if modality == "audio":
            return self._read_audio(path, frame_indices, record)
        read = self._compute_flow if modality == "flow" else self._read_motion
        flow = read(path, sorted(set(frame_indices)), record)
        return torch.from_numpy(np.stack([flow[number] for number in frame_indices]))

    def flow_levels(self, record: ClipRecord) -> FlowLevels:
        """Return how the flow of a video is quantized; a bound by motion is measured when it is first needed."""
        if record.video_id not in self._levels:
            motion = None
            if self._flow_info.bound == "auto":
                path, backend = self._paths[record.video_id], make_store_flow(self.info, None)
                assert backend is not None
                motion = sample_motion(path, self.info, decoder=choose_decoder("auto"), flow=backend)
            self._levels[record.video_id] = self._flow_info.choose_levels(record.width, record.height, motion)
        return self._levels[record.video_id]

    def _make_record(self, video_id: str, path: Path) -> ClipRecord:
        num_frames, height, width = 0, 0, 0
        for frame in self._frames(path):
            num_frames, (height, width) = num_frames + 1, frame.shape[:2]
        if num_frames == 0:
            raise ValueError(f"{path}: the file has no frames")
        with open_video(path) as reader:
            fps = float(stored_fps(reader, self.info))
        return ClipRecord(video_id, video_id, "", -1, num_frames, num_frames - 1, fps, width, height, "")

    def _compute_flow(self, path: Path, wanted: list[int], record: ClipRecord) -> dict[int, Frame]:
        """Return {i: quantized flow (2, H, W) from frame i to i + 1}; runs of neighbors go to the backend together."""
        frames = {frame for number in wanted for frame in (number, number + 1)}
        gray = self._decode(path, frames, to_gray, for_flow=True)
        levels, size = self.flow_levels(record), (record.width, record.height)
        backend = make_store_flow(self.info, None)
        assert backend is not None
        flow: dict[int, Frame] = {}
        gaps = np.flatnonzero(np.diff(wanted) > 1) + 1
        for run in (one.tolist() for one in np.split(np.array(wanted), gaps)):
            pictures = np.stack([gray[number] for number in (*run, run[-1] + 1)])
            flow.update(zip(run, levels.encode(resize_flow(backend(pictures), size)), strict=True))
        return flow

    def _read_motion(self, path: Path, wanted: list[int], record: ClipRecord) -> dict[int, Frame]:
        """Return {i: quantized motion vectors (2, H, W) from frame i to i + 1}."""
        levels, size = self.flow_levels(record), (record.width, record.height)
        try:
            with MotionReader(path) as reader:
                motion = islice(file_motion(reader, self.info), wanted[-1] + 1)
                found = {
                    number: levels.encode(resize_flow(one[None], size))[0]
                    for number, one in enumerate(motion)
                    if number in wanted
                }
                if not reader.has_vectors:
                    raise ValueError(f"no motion vectors that FFmpeg exports: {reader.codec}")
        except (ValueError, StageError) as error:
            raise ValueError(f"{path}: {error.reason if isinstance(error, StageError) else error}") from error
        return found

    def _read_audio(self, path: Path, frame_indices: Sequence[int], record: ClipRecord) -> Tensor:
        fps = Fraction(record.fps).limit_denominator(100_000)
        try:
            spectra = list(islice(file_audio(path, self.info, fps), max(frame_indices) + 1))
        except StageError as error:
            raise ValueError(f"{path}: {error.reason}") from error
        return torch.from_numpy(np.stack([spectra[number] for number in frame_indices])).unsqueeze(1)

    def _decode(
        self, path: Path, wanted: Collection[int], convert: Callable[[Frame], Frame], *, for_flow: bool = False
    ) -> dict[int, Frame]:
        last = max(wanted)
        found: dict[int, Frame] = {}
        for number, frame in enumerate(self._frames(path, for_flow=for_flow)):
            if number in wanted:
                found[number] = convert(frame)
            if number == last:
                break
        return found

    def _frames(self, path: Path, *, for_flow: bool = False) -> Iterator[Frame]:
        try:
            with open_video(path) as reader:
                if for_flow:
                    yield from flow_frames(reader, self.info)
                else:
                    info = self.info
                    yield from stored_frames(
                        reader, short_edge=info.short_edge, max_frames=info.max_frames, fps=info.fps
                    )
        except (ValueError, StageError) as error:
            raise ValueError(f"{path}: {error.reason if isinstance(error, StageError) else error}") from error


def file_settings(
    metadata: EncoderMetadata,
    *,
    like: ClipStore | None = None,
    short_edge: int | None = None,
    flow_backend: str | None = None,
) -> StoreInfo:
    """Return the settings of `like`, else of the training clips, else native frames with CoCLR's flow bound."""
    parameters = FlowParameters().model_dump(by_alias=True)
    flow = FlowInfo(backend=choose_backend("auto"), version="", parameters=parameters, bound=FULL_BOUND)
    flow = flow if metadata.flow is None else metadata.flow
    moving: Literal["flow", "motion"] = "motion" if flow.algorithm == MOTION_VECTORS else "flow"
    info = StoreInfo(
        modalities=("rgb", moving),
        short_edge=metadata.short_edge or 0,
        max_frames=0,
        fps=metadata.fps or 0.0,
        quality=0,
        audio=AudioInfo(version="") if metadata.modality == "audio" else None,
        **{moving: flow},
    )
    if like is not None:
        info = like.info.model_copy(update={} if like.info.quantized is not None else {moving: flow})
    if short_edge is not None:
        info = info.model_copy(update={"short_edge": short_edge})
    if flow_backend is not None:
        if info.flow is None:
            raise ValueError(f"flow_backend={flow_backend!r}: the encoder takes motion vectors, not optical flow")
        backend, algorithm = choose_backend(flow_backend), algorithm_name(flow_backend)
        changes: dict[str, object] = {"backend": backend, "algorithm": algorithm}
        if algorithm != info.flow.algorithm:
            changes["parameters"] = parameters_class(backend)().model_dump(by_alias=True)
        info = info.model_copy(update={"flow": info.flow.model_copy(update=changes)})
    return info


def _read_all(data: VideoDataset, paths: Sequence[Path]) -> Iterator[DecodedVideo]:
    for index, path in enumerate(paths):
        video = data[index]
        if video.error:
            raise ValueError(video.error if str(path) in video.error else f"{path}: {video.error}")
        yield video


def _device_of(module: nn.Module) -> torch.device:
    return next((tensor.device for tensor in module.parameters()), torch.device("cpu"))
