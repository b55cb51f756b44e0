"""Decoded clips in memory, for data sets that fit: reading becomes a copy."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from covid_cmsf.clips.interface import Clips, check_request
from covid_cmsf.clips.manifest import ClipRecord


class CachedClips(Clips):
    """Clips of which as many as `gigabytes` allow are decoded at once, in order; the rest are read from disk.

    The tensors are in shared memory: workers of a data loader use one copy.
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
        self._clips, self._modalities = clips, tuple(modalities)
        self.records, self.splits, self.flow_bound = clips.records, clips.splits, clips.flow_bound
        self._frames: dict[tuple[str, str], Tensor] = {}
        self.num_bytes = 0
        for record in records:
            frames = {modality: clips.read_codes(record, modality, _all(record, modality)) for modality in modalities}
            size = sum(one.numel() for one in frames.values())
            if self.num_bytes + size > gigabytes * 1e9:
                break
            self.num_bytes += size
            for modality, one in frames.items():
                self._frames[record.video_id, modality] = one.share_memory_()
            on_video()

    @property
    def num_cached(self) -> int:
        """Videos in memory."""
        return len({video_id for video_id, _ in self._frames})

    def read_codes(self, record: ClipRecord, modality: str, frame_numbers: Sequence[int]) -> Tensor:
        """As the clips beneath, from memory where possible."""
        frames = self._frames.get((record.video_id, modality))
        if frames is None:
            return self._clips.read_codes(record, modality, frame_numbers)
        check_request(record, modality, frame_numbers, self._modalities)
        return frames[torch.tensor(list(frame_numbers))]


def _all(record: ClipRecord, modality: str) -> list[int]:
    return list(range(record.num_flow if modality == "flow" else record.num_frames))
