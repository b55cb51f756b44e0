"""Videos, decoded and cut in worker processes; what follows (colors, normalization) is left to the device."""

# F frames of a video that are needed, C channels, T frames of a window, H W pixels

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.evaluation.features.protocol import EvalProtocol, choose_windows, video_rng
from covid_cmsf.views.augment_params import AugmentParams, GeometryParams, sample_augment_params
from covid_cmsf.views.dataset import num_usable_frames, required_frames
from covid_cmsf.views.loader import init_worker
from covid_cmsf.views.ops import crop_resize

CROPS = (1, 5, 10)


@dataclass(frozen=True)
class DecodedVideo:
    """One video. Every frame is there once a crop, however many windows it is in. With a `fault` there is nothing."""

    index: int  # in the data set
    crops: tuple[Tensor, ...] = ()  # uint8 (F, C, H, W)
    draws: tuple[AugmentParams, ...] = ()  # one a crop
    window_frames: tuple[tuple[int, ...], ...] = ()  # one a window: where its frames stand in a crop
    starts: tuple[int, ...] = ()  # one a window: its first frame number
    error: str = ""

    def views(self, eval_protocol: EvalProtocol, flow_bound: float, device: torch.device) -> Iterator[Tensor]:
        """What the encoder sees, window by window of each crop: (C, T, H, W)."""
        for crop, draw in zip(self.crops, self.draws, strict=True):
            raw = crop.to(device)
            for window_frames in self.window_frames:
                yield eval_protocol.to_view(raw[torch.tensor(window_frames, device=device)], draw, flow_bound)


class VideoDataset(Dataset[DecodedVideo]):
    """Number -> video. `subsets` says of each record which subset of the split it is in."""

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
            raise ValueError(f"{num_crops} crops: choose from {', '.join(map(str, CROPS))}")
        self.clips, self.records, self.subsets = clips, records, subsets
        self.eval_protocol, self.num_crops = eval_protocol, num_crops
        self.modality = eval_protocol.resolve_modality()
        if self.modality.stored_modality not in clips.modalities:
            raise ValueError(
                f"these clips have {', '.join(clips.modalities)}; nothing to read {eval_protocol.modality} from"
            )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> DecodedVideo:
        try:
            return self._read(index)
        except (ValueError, OSError) as error:  # the caller lists it; nothing stands in for it
            return DecodedVideo(index, error=str(error) or type(error).__name__)

    def _read(self, index: int) -> DecodedVideo:
        record, eval_protocol = self.records[index], self.eval_protocol
        rng = video_rng(eval_protocol.seed, record.video_id)
        usable = num_usable_frames(record, [self.modality])
        windows = choose_windows(eval_protocol, usable, self.subsets[index], rng)
        window_frame_numbers = [required_frames(self.modality, window, single=0) for window in windows]
        frame_indices = sorted({frame for frames in window_frame_numbers for frame in frames})
        raw = self.clips.read_raw(record, self.modality.stored_modality, frame_indices)
        draw = sample_augment_params(eval_protocol.augmentation(), rng, height=raw.shape[-2], width=raw.shape[-1])
        draws = [replace(draw, geometry=geometry) for geometry in crop_geometries(draw.geometry, self.num_crops)]
        position = {frame: i for i, frame in enumerate(frame_indices)}
        return DecodedVideo(
            index,
            crops=tuple(crop_resize(raw, one.geometry, eval_protocol.size) for one in draws),
            draws=tuple(draws),
            window_frames=tuple(tuple(position[frame] for frame in frames) for frames in window_frame_numbers),
            starts=tuple(window[0] for window in windows),
        )


def crop_geometries(center: GeometryParams, num_crops: int) -> list[GeometryParams]:
    """The center, then cuts of its size in the four corners (5), then all of them mirrored (10)."""
    if num_crops == 1:
        return [center]
    corners = [(top, left) for top in (0.0, 1 - center.height) for left in (0.0, 1 - center.width)]
    five = [center, *(replace(center, top=top, left=left) for top, left in corners)]
    return five if num_crops == 5 else five + [replace(one, flip=not one.flip) for one in five]


def load_videos(data: VideoDataset, indices: Sequence[int], *, num_workers: int) -> Iterator[DecodedVideo]:
    """These videos in this order, read by `num_workers` processes (0: by this one)."""
    context = "spawn" if num_workers else None
    loader: DataLoader[DecodedVideo] = DataLoader(
        data,
        batch_size=None,
        sampler=indices,
        num_workers=num_workers,
        multiprocessing_context=context,
        worker_init_fn=init_worker,
    )
    yield from loader
