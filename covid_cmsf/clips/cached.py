"""Keep decoded clips in shared memory, for data sets that fit.

Shapes: T frames, C channels, H x W pixels.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.records import ClipRecord


class CachedClips(Clips):
    """Clips decoded once into at most `gigabytes` of memory, in the order of `records`; the rest stay on disk.

    The memory is one shared block, so all workers of a data loader use the same copy. A video that can't be decoded is
    not cached: reading it raises the decoder's error, as without a cache.
    """

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        modalities: Sequence[str],
        *,
        gigabytes: float,
        on_video: Callable[[], None] = lambda: None,
    ) -> None:
        self._clips = clips
        for name in Clips.__annotations__:  # everything that the interface promises
            setattr(self, name, getattr(clips, name))
        # {(video_id, modality): (offset, shape in memory, whether that shape is channels-last, as decoded)}
        self._locations: dict[tuple[str, str], tuple[int, torch.Size, bool]] = {}
        self.num_bytes, max_bytes = 0, int(gigabytes * 1e9)
        # Pages that are never written take no physical memory.
        self._memory = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(max_bytes))
        for record in records:
            frames = self._decode(record, modalities)
            size = sum(one.numel() for one in frames.values())
            if self.num_bytes + size > max_bytes:
                break
            for modality, one in frames.items():
                channels_last = one.permute(0, 2, 3, 1).is_contiguous()
                stored_layout = one.permute(0, 2, 3, 1) if channels_last else one
                self._memory[self.num_bytes : self.num_bytes + one.numel()] = stored_layout.reshape(-1)
                self._locations[record.video_id, modality] = self.num_bytes, stored_layout.shape, channels_last
                self.num_bytes += one.numel()
            on_video()

    @property
    def num_cached(self) -> int:
        """Number of videos in memory."""
        return len({video_id for video_id, _ in self._locations})

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return what the wrapped clips' `read_raw` returns, from memory where possible."""
        if (record.video_id, modality) not in self._locations:
            return self._clips.read_raw(record, modality, frame_indices)
        check_request(record, modality, frame_indices, self.modalities)
        start, shape, channels_last = self._locations[record.video_id, modality]
        frames = self._memory[start : start + shape.numel()].view(shape)
        selected = frames[torch.tensor(list(frame_indices))]
        return selected.permute(0, 3, 1, 2) if channels_last else selected  # (T, C, H, W)

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the wrapped clips' files."""
        return self._clips.files(record, modality)

    def _decode(self, record: ClipRecord, modalities: Sequence[str]) -> dict[str, Tensor]:
        counts = {name: record.num_flow if name == "flow" else record.num_frames for name in modalities}
        try:
            return {name: self._clips.read_raw(record, name, list(range(count))) for name, count in counts.items()}
        except (ValueError, OSError):
            return {}
