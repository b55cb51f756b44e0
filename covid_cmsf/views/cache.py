"""Decoded clips in memory, for data sets that fit: reading becomes a copy."""

# T frames, C channels, H W pixels

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from covid_cmsf.clips.interface import Clips, check_request
from covid_cmsf.clips.manifest import ClipRecord


class CachedClips(Clips):
    """Clips of which as many as `gigabytes` allow are decoded at once, in order; the rest are read from disk.

    They lie in one block of shared memory, so workers of a data loader use one copy. A video that can't be decoded is
    left to the disk, where whoever reads it meets the error.
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
        self.records, self.splits, self.flow_bound = clips.records, clips.splits, clips.flow_bound
        self.modalities = clips.modalities
        # Where a video begins, its shape in memory, and whether its channels are innermost there, as decoded.
        self._places: dict[tuple[str, str], tuple[int, torch.Size, bool]] = {}
        self.num_bytes, limit = 0, int(gigabytes * 1e9)
        # Pages of it that are never written cost nothing.
        self._memory = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(limit))
        for record in records:
            frames = self._decoded(record, modalities)
            size = sum(one.numel() for one in frames.values())
            if self.num_bytes + size > limit:
                break
            for modality, one in frames.items():
                innermost = one.permute(0, 2, 3, 1).is_contiguous()
                laid_out = one.permute(0, 2, 3, 1) if innermost else one
                self._memory[self.num_bytes : self.num_bytes + one.numel()] = laid_out.reshape(-1)
                self._places[record.video_id, modality] = self.num_bytes, laid_out.shape, innermost
                self.num_bytes += one.numel()
            on_video()

    @property
    def num_cached(self) -> int:
        """Videos in memory."""
        return len({video_id for video_id, _ in self._places})

    def read_codes(self, record: ClipRecord, modality: str, frame_numbers: Sequence[int]) -> Tensor:
        """As the clips beneath, from memory where possible."""
        if (record.video_id, modality) not in self._places:
            return self._clips.read_codes(record, modality, frame_numbers)
        check_request(record, modality, frame_numbers, self.modalities)
        start, shape, innermost = self._places[record.video_id, modality]
        frames = self._memory[start : start + shape.numel()].view(shape)
        picked = frames[torch.tensor(list(frame_numbers))]
        return picked.permute(0, 3, 1, 2) if innermost else picked  # (T, C, H, W)

    def _decoded(self, record: ClipRecord, modalities: Sequence[str]) -> dict[str, Tensor]:
        counts = {name: record.num_flow if name == "flow" else record.num_frames for name in modalities}
        try:
            return {name: self._clips.read_codes(record, name, list(range(count))) for name, count in counts.items()}
        except (ValueError, OSError):
            return {}
