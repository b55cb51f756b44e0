"""Videos, decoded and cut in worker processes; what follows (colors, normalization) is left to the device."""

# F frames of a video that are needed, C channels, T frames of a window, H W pixels

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.evaluation.showing import Showing
from covid_cmsf.evaluation.windows import choose_windows, video_rng
from covid_cmsf.views.dataset import frames_of, usable_frames
from covid_cmsf.views.draws import Geometry, ViewDraw, draw_view
from covid_cmsf.views.geometry import cut
from covid_cmsf.views.loader import start_worker

CROPS = (1, 5, 10)


@dataclass(frozen=True)
class ShownVideo:
    """One video. Every frame is there once a crop, however many windows it is in. With a `fault` there is nothing."""

    number: int  # in the data set
    crops: tuple[Tensor, ...] = ()  # uint8 (F, C, H, W)
    draws: tuple[ViewDraw, ...] = ()  # one a crop
    places: tuple[tuple[int, ...], ...] = ()  # one a window: where its frames stand in a crop
    starts: tuple[int, ...] = ()  # one a window: its first frame number
    fault: str = ""

    def views(self, showing: Showing, flow_bound: float, device: torch.device) -> Iterator[Tensor]:
        """What the encoder sees, window by window of each crop: (C, T, H, W)."""
        for crop, draw in zip(self.crops, self.draws, strict=True):
            codes = crop.to(device)
            for places in self.places:
                yield showing.finish(codes[torch.tensor(places, device=device)], draw, flow_bound)


class ShownVideos(Dataset[ShownVideo]):
    """Number -> video. `parts` says of each record which part of the split it is in."""

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        parts: Sequence[str],
        showing: Showing,
        *,
        num_crops: int = 1,
    ) -> None:
        if num_crops not in CROPS:
            raise ValueError(f"{num_crops} crops: choose from {', '.join(map(str, CROPS))}")
        self.clips, self.records, self.parts = clips, records, parts
        self.showing, self.num_crops = showing, num_crops
        self.modality = showing.chosen()
        if self.modality.stored not in clips.modalities:
            raise ValueError(
                f"these clips have {', '.join(clips.modalities)}; there is nothing to read {showing.modality} from"
            )

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, number: int) -> ShownVideo:
        try:
            return self._shown(number)
        except (ValueError, OSError) as error:  # the caller lists it; nothing stands in for it
            return ShownVideo(number, fault=str(error) or type(error).__name__)

    def _shown(self, number: int) -> ShownVideo:
        record, showing = self.records[number], self.showing
        rng = video_rng(showing.seed, record.video_id)
        usable = usable_frames(record, [self.modality])
        windows = choose_windows(showing, usable, self.parts[number], rng)
        needed = [frames_of(self.modality, window, single=0) for window in windows]
        ordered = sorted({frame for frames in needed for frame in frames})
        codes = self.clips.read_codes(record, self.modality.stored, ordered)
        draw = draw_view(showing.augmentation(), rng, height=codes.shape[-2], width=codes.shape[-1])
        draws = [replace(draw, geometry=geometry) for geometry in crop_geometries(draw.geometry, self.num_crops)]
        place = {frame: i for i, frame in enumerate(ordered)}
        return ShownVideo(
            number,
            crops=tuple(cut(codes, one.geometry, showing.size) for one in draws),
            draws=tuple(draws),
            places=tuple(tuple(place[frame] for frame in frames) for frames in needed),
            starts=tuple(window[0] for window in windows),
        )


def crop_geometries(center: Geometry, num_crops: int) -> list[Geometry]:
    """The center, then cuts of its size in the four corners (5), then all of them mirrored (10)."""
    if num_crops == 1:
        return [center]
    corners = [(top, left) for top in (0.0, 1 - center.height) for left in (0.0, 1 - center.width)]
    five = [center, *(replace(center, top=top, left=left) for top, left in corners)]
    return five if num_crops == 5 else five + [replace(one, flip=not one.flip) for one in five]


def load_videos(data: ShownVideos, numbers: Sequence[int], *, num_workers: int) -> Iterator[ShownVideo]:
    """These videos in this order, read by `num_workers` processes (0: by this one)."""
    context = "spawn" if num_workers else None
    loader: DataLoader[ShownVideo] = DataLoader(
        data,
        batch_size=None,
        sampler=numbers,
        num_workers=num_workers,
        multiprocessing_context=context,
        worker_init_fn=start_worker,
    )
    yield from loader
