"""Read clip stores.

Shapes: T frames, H x W pixels.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.clips.acceptance import read_accepted
from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.decoders import choose_decoder, open_video
from covid_cmsf.clips.flow_codec import unstack_components
from covid_cmsf.clips.records import (
    FLOW_MODALITIES,
    ClipRecord,
    Failure,
    StoreInfo,
    clip_path,
    read_failures,
    read_manifest,
    read_split,
    read_store_info,
)
from covid_cmsf.files import check_file_size, file_sha256


class ClipStore(Clips):
    """A clip store as written by `covid-cmsf preprocess`.

    It has no open files, so it can be sent to worker processes; they share one copy of the records.

    Example:
        >>> store = cc.ClipStore.open("clips/ucf101")
        >>> store.info.short_edge, store.flow_levels(store.records[0]).bound
        (0, 4.0)
    """

    info: StoreInfo

    def __init__(self, path: Path, info: StoreInfo, records: Sequence[ClipRecord], *, decoder: str = "auto") -> None:
        self.path, self.info, self.records = path, info, records
        self.splits = SplitFiles(path / "splits")
        self.modalities: tuple[str, ...] = info.modalities
        self.flow_bound = (
            stored.bound if (stored := info.quantized) is not None and isinstance(stored.bound, float) else 0.0
        )
        self.num_flow_levels = stored.levels if stored is not None else 256
        self._decoder = choose_decoder(decoder)
        self._verified: set[tuple[str, str]] = set()  # modality and id of files whose hash this process has compared

    @classmethod
    def open(cls, path: Path | str, *, decoder: str = "auto") -> "ClipStore":
        """Open the store at `path`; FileNotFoundError says what is missing."""
        path = Path(path)
        info = read_store_info(path)
        if not (path / "manifest.csv").is_file():
            raise FileNotFoundError(f"{path} has no manifest.csv yet: run the same `covid-cmsf preprocess` again")
        return cls(path, info, read_manifest(path / "manifest.csv"), decoder=decoder)

    @property
    def failures(self) -> list[Failure]:
        """The videos that were skipped when the store was made."""
        return read_failures(self.path / "failures.csv")

    @property
    def accepted(self) -> list[Failure]:
        """The skipped videos that were accepted with `covid-cmsf clips accept`."""
        return read_accepted(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_verified": set()}  # a worker process compares for itself

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the modality's MP4 file."""
        return [clip_path(self.path, modality, record.video_id)]

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return uint8 `rgb` (T, 3, H, W), or quantized `flow` or `motion` (T, 2, H, W), or `audio` (T, 1, H, W)."""
        check_request(record, modality, frame_indices, self.modalities)
        path = clip_path(self.path, modality, record.video_id)
        try:
            if (modality, record.video_id) not in self._verified:
                verify_clip(path, record, modality)
                self._verified.add((modality, record.video_id))
            # decord does not read pictures as narrow as those of spectrograms.
            with open_video(path, "av" if modality == "audio" else self._decoder) as video:
                if modality == "audio":
                    return torch.from_numpy(video.read_luma(frame_indices)).unsqueeze(1)
                if modality in FLOW_MODALITIES:
                    return torch.from_numpy(unstack_components(video.read_luma(frame_indices)))
                return torch.from_numpy(video.read_rgb(frame_indices)).permute(0, 3, 1, 2)
        except ValueError as error:
            raise ValueError(f"{path}: {error}; `covid-cmsf clips check` finds all damaged files") from error


def verify_clip(path: Path, record: ClipRecord, modality: str) -> None:
    """Raise ValueError if a stored file is not the one that was written: another size, or another SHA-256.

    Stores of older versions have neither; then nothing is compared.
    """
    check_file_size(path, getattr(record, f"{modality}_bytes"))
    expected = getattr(record, f"{modality}_sha256")
    if expected and path.is_file() and file_sha256(path) != expected:
        raise ValueError("its SHA-256 is another one than when it was written: it was replaced or damaged")


class SplitFiles(Mapping[str, Mapping[str, str]]):
    """{name: {video_id: subset}} of a folder of CSV files, each read when it is first used.

    Worker processes get the names only: they read videos, not splits.
    """

    def __init__(self, folder: Path) -> None:
        self._paths = {file.stem: file for file in sorted(folder.glob("*.csv"))}
        self._splits: dict[str, dict[str, str]] = {}

    def __getitem__(self, name: str) -> Mapping[str, str]:
        if name not in self._splits:
            self._splits[name] = read_split(self._paths[name])
        return self._splits[name]

    def __contains__(self, name: object) -> bool:
        return name in self._paths  # not by reading the file

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __getstate__(self) -> dict[str, object]:
        return {"_paths": self._paths, "_splits": {}}
