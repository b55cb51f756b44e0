"""Keep decoded clips in shared memory, for data sets that fit.

Shapes: T frames, C channels, H x W pixels.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.records import FLOW_MODALITIES, ClipRecord
from covid_cmsf.clips.shared_memory import LocalProcesses, MachineMemory


class CachedClips(Clips):
    """Clips decoded once into at most `gigabytes` of memory, in the order of `records`; the rest stay on disk.

    The memory is one shared block, so all workers of a data loader use the same copy. The training processes of a
    machine, `local`, share one, too: each decodes its part of the records, and all read all of them. A video that can't
    be decoded is not cached: reading it raises the decoder's error, as without a cache.
    """

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        modalities: Sequence[str],
        *,
        gigabytes: float,
        on_video: Callable[[], None] = lambda: None,
        local: LocalProcesses | None = None,
    ) -> None:
        self._clips, local = clips, local or LocalProcesses()
        for name in Clips.__annotations__:  # everything that the interface promises
            setattr(self, name, getattr(clips, name))
        max_bytes = int(gigabytes * 1e9)
        self._memory: Tensor | MachineMemory
        if local.count > 1:
            self._memory = MachineMemory(max_bytes, local)
        else:  # pages that are never written take no physical memory
            self._memory = torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage._new_shared(max_bytes))
        own_bytes = max_bytes // local.count
        own = self._fill_(
            records[local.rank :: local.count],
            modalities,
            start=local.rank * own_bytes,
            end=(local.rank + 1) * own_bytes,
            on_video=on_video,
        )
        # {(video_id, modality): (offset, shape in memory, whether that shape is channels-last, as decoded)}
        self._locations: dict[tuple[str, str], tuple[int, torch.Size, bool]] = {}
        for locations in local.gather(own):
            self._locations |= locations
        self.num_bytes = sum(shape.numel() for _, shape, _ in self._locations.values())  # of all processes

    def _fill_(
        self,
        records: Sequence[ClipRecord],
        modalities: Sequence[str],
        *,
        start: int,
        end: int,
        on_video: Callable[[], None],
    ) -> dict[tuple[str, str], tuple[int, torch.Size, bool]]:
        """Decode records into the bytes from `start` to `end`, as far as they fit, and return where they are."""
        locations = {}
        for record in records:
            frames = self._decode(record, modalities)
            size = sum(one.numel() for one in frames.values())
            if start + size > end:
                break
            for modality, one in frames.items():
                channels_last = one.permute(0, 2, 3, 1).is_contiguous()
                stored_layout = one.permute(0, 2, 3, 1) if channels_last else one
                self._bytes[start : start + one.numel()] = stored_layout.reshape(-1)
                locations[record.video_id, modality] = start, stored_layout.shape, channels_last
                start += one.numel()
            on_video()
        return locations

    @property
    def _bytes(self) -> Tensor:
        return self._memory.bytes if isinstance(self._memory, MachineMemory) else self._memory

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
        frames = self._bytes[start : start + shape.numel()].view(shape)
        selected = frames[torch.tensor(list(frame_indices))]
        return selected.permute(0, 3, 1, 2) if channels_last else selected  # (T, C, H, W)

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the wrapped clips' files."""
        return self._clips.files(record, modality)

    def _decode(self, record: ClipRecord, modalities: Sequence[str]) -> dict[str, Tensor]:
        counts = {name: record.num_flow if name in FLOW_MODALITIES else record.num_frames for name in modalities}
        try:
            return {name: self._clips.read_raw(record, name, list(range(count))) for name, count in counts.items()}
        except (ValueError, OSError):
            return {}
