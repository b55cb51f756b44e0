"""Videos, decoded and cropped in worker processes; color jitter and normalization run on the device."""

# F frames of a video that are needed, C channels, T frames of a window, H W pixels

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.flow_codec import COCLR_LEVELS, FlowLevels
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.evaluation.features.protocol import CroppedClip, EvalProtocol, choose_windows, video_rng
from covid_cmsf.views.augment_params import AugmentParams, GeometryParams, sample_augment_params
from covid_cmsf.views.dataset import num_usable_frames, required_frames
from covid_cmsf.views.loader import init_worker, worker_start_method
from covid_cmsf.views.modalities import assemble
from covid_cmsf.views.ops import crop_resize

CROPS = (1, 5, 10)


@dataclass(frozen=True)
class DecodedVideo:
    """Frames of one video, once per crop, however many windows use them. Empty if there is an `error`."""

    index: int  # in the data set
    crops: tuple[Tensor, ...] = ()  # per crop: uint8 (F, C, H, W)
    params: tuple[AugmentParams, ...] = ()  # per crop
    window_frames: tuple[tuple[int, ...], ...] = ()  # per window: indices of its frames in a crop
    starts: tuple[int, ...] = ()  # per window: index of its first frame in the video
    levels: FlowLevels = COCLR_LEVELS  # of the video's flow
    error: str = ""

    def views(self, eval_protocol: EvalProtocol, device: torch.device) -> Iterator[Tensor]:
        """Yield the encoder's input (C, T, H, W) for every window of the first crop, then of the second, ..."""
        for clip in self.windows():
            yield eval_protocol.to_views([clip], device)[0]

    def windows(self) -> Iterator[CroppedClip]:
        """Yield the cropped frames of every window of the first crop, then of the second, ..."""
        for crop, params in zip(self.crops, self.params, strict=True):
            for window_frames in self.window_frames:
                yield CroppedClip(crop[torch.tensor(window_frames)], params, self.levels)


class VideoDataset(Dataset[DecodedVideo]):
    """Map an index to a decoded video; `subsets[i]` is the subset (train, test, val) of `records[i]`."""

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        subsets: Sequence[str],
        eval_protocol: EvalProtocol,
        *,
        num_crops: int = 1,
    ) -> None:
        if num_crops not in CROPS:
            raise ValueError(f"num_crops = {num_crops}: choose from {', '.join(map(str, CROPS))}")
        if num_crops > 1 and eval_protocol.resolve_modality().spectrogram:
            raise ValueError(f"num_crops = {num_crops}: a spectrogram is not cropped; 1 is needed")
        self.clips, self.records, self.subsets = clips, records, subsets
        self.eval_protocol, self.num_crops = eval_protocol, num_crops
        self.modality = eval_protocol.resolve_modality()
        if self.modality.stored_modality not in clips.modalities:
            raise ValueError(
                f"{eval_protocol.modality} needs clips with {self.modality.stored_modality}; these have "
                f"{', '.join(clips.modalities)}"
            )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> DecodedVideo:
        try:
            return self._read(index)
        except (ValueError, OSError) as error:  # reported as skipped, never replaced by another video
            return DecodedVideo(index, error=str(error) or type(error).__name__)

    def _read(self, index: int) -> DecodedVideo:
        record, eval_protocol = self.records[index], self.eval_protocol
        rng = video_rng(eval_protocol.seed, record.video_id)
        usable = num_usable_frames(record, [self.modality])
        windows = choose_windows(eval_protocol, usable, self.subsets[index], rng)
        window_frame_numbers = [required_frames(self.modality, window, single=len(window) // 2) for window in windows]
        frame_indices = sorted({frame for frames in window_frame_numbers for frame in frames})
        levels = self.clips.flow_levels(record) if self.modality.is_flow else COCLR_LEVELS
        raw = self.clips.read_raw(record, self.modality.stored_modality, frame_indices)
        position = {frame: i for i, frame in enumerate(frame_indices)}
        window_frames = tuple(tuple(position[frame] for frame in frames) for frames in window_frame_numbers)
        if self.modality.spectrogram:  # a picture per window
            pictures = [assemble(raw[torch.tensor(one)], self.modality, levels=levels) for one in window_frames]
            raw, window_frames = torch.cat(pictures), tuple((number,) for number in range(len(pictures)))
        else:
            raw = assemble(raw, self.modality, levels=levels)
        augmentation = eval_protocol.augmentation()
        if eval_protocol.resize is not None:
            raw, augmentation = eval_protocol.resize.apply(raw, augmentation)
        center = sample_augment_params(augmentation, rng, height=raw.shape[-2], width=raw.shape[-1])
        params = [replace(center, geometry=geometry) for geometry in crop_geometries(center.geometry, self.num_crops)]
        return DecodedVideo(
            index,
            crops=tuple(crop_resize(raw, one.geometry, eval_protocol.size) for one in params),
            params=tuple(params),
            window_frames=window_frames,
            starts=tuple(window[0] for window in windows),
            levels=levels,
        )


def crop_geometries(center: GeometryParams, num_crops: int) -> list[GeometryParams]:
    """Return the center crop (1), also the four corners (5), also all five mirrored (10)."""
    if num_crops == 1:
        return [center]
    corners = [(top, left) for top in (0.0, 1 - center.height) for left in (0.0, 1 - center.width)]
    five = [center, *(replace(center, top=top, left=left) for top, left in corners)]
    return five if num_crops == 5 else five + [replace(one, flip=not one.flip) for one in five]


def load_videos(data: VideoDataset, indices: Sequence[int], *, num_workers: int) -> Iterator[DecodedVideo]:
    """Yield the videos of `indices` in order, read by `num_workers` processes (0: by this process)."""
    yield from video_loader(data, indices, num_workers=num_workers, persistent=False)


def video_loader(
    data: VideoDataset, indices: Sequence[int] | None = None, *, num_workers: int, persistent: bool = True
) -> DataLoader[DecodedVideo]:
    """Return a loader of the videos of `indices` (default: all) in order; `persistent` workers serve many passes."""
    return DataLoader(
        data,
        batch_size=None,
        sampler=range(len(data)) if indices is None else indices,
        num_workers=num_workers,
        multiprocessing_context=worker_start_method(num_workers),
        persistent_workers=persistent and num_workers > 0,
        worker_init_fn=init_worker,
    )


def with_progress(videos: Iterator[DecodedVideo], on_video: Callable[[], None]) -> Iterator[DecodedVideo]:
    """Yield `videos`, and call `on_video` after each has been used."""
    for video in videos:
        yield video
        on_video()
