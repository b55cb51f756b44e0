"""The thumbnails of a report: those of most use first, as fine as the budget allows, each made once."""

import hashlib
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.logs import progress_bar
from covid_cmsf.report.thumbnails import STYLES, Style, thumbnail

logger = logging.getLogger(__name__)
NUM_TRIED = 10  # pictures whose sizes say what the rest will take
SPARE = 0.9  # of the budget: a sample may mislead


class Wanted(NamedTuple):
    """A picture of a video in one modality."""

    clips: str  # their address
    video_id: str
    modality: str


@dataclass
class Pictures:
    """What was made: `made[wanted]` is the file's name in `folder`; videos that could not be read are listed."""

    folder: str
    made: dict[Wanted, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    num_left_out: int = 0  # for want of space


class Opened:
    """Collections of clips by address, opened once; those that cannot be reached have a reason."""

    def __init__(self, instead: str | None = None) -> None:
        self.instead = instead  # of every address
        self.reasons: dict[str, str] = {}
        self._clips: dict[str, tuple[Clips, dict[str, ClipRecord]]] = {}

    def get(self, address: str) -> tuple[Clips, dict[str, ClipRecord]] | None:
        """The clips and their records by id; None where they are out of reach."""
        if address not in self._clips and address not in self.reasons:
            try:
                clips = open_clips(self.instead or address)
                self._clips[address] = clips, {record.video_id: record for record in clips.records}
            except (ValueError, OSError, ImportError) as error:
                self.reasons[address] = str(error)
        return self._clips.get(address)

    def record(self, wanted: Wanted) -> ClipRecord | None:
        """The video's record, if there is a picture of that modality to be had."""
        opened = self.get(wanted.clips)
        record = opened[1].get(wanted.video_id) if opened is not None else None
        if opened is None or record is None or wanted.modality not in opened[0].modalities:
            return None
        return record if wanted.modality != "flow" or record.num_flow else None


def make_pictures(
    wanted: Sequence[Wanted],
    opened: Opened,
    out: Path,
    *,
    budget: float,
    workers: int = 2,
    style: Style | None = None,
) -> Pictures:
    """Writes below `out`; `wanted` is in order of use, and what exceeds `budget` bytes is left out, last first."""
    there = [one for one in dict.fromkeys(wanted) if opened.record(one) is not None]
    if not there:
        return Pictures("")
    tried = there[:: max(1, len(there) // NUM_TRIED)][:NUM_TRIED]
    style, each = choose_style(lambda chosen: _mean_size(tried, opened, chosen), len(there), SPARE * budget, style)
    fitting = there[: int(SPARE * budget / each)] if each else there
    pictures = Pictures(style.name, num_left_out=len(there) - len(fitting))
    folder = out / style.name
    folder.mkdir(parents=True, exist_ok=True)
    names = {one: file_name(one, opened) for one in fitting}
    _remove_others(out, folder, set(names.values()))
    with progress_bar("pictures", len(fitting)) as advance, ThreadPoolExecutor(workers) as pool:
        reasons = pool.map(lambda one: _make(one, opened, folder / names[one], style), fitting)
        for one, reason in zip(fitting, reasons, strict=True):
            advance()
            if reason is None:
                pictures.made[one] = names[one]
            else:
                pictures.failures.append(f"{one.video_id} ({one.modality}): {reason}")
    return pictures


def choose_style(
    mean_size: Callable[[Style], float], count: int, budget: float, style: Style | None = None
) -> tuple[Style, float]:
    """The finest style in which `count` pictures fit (else the coarsest), and the mean bytes of one."""
    size = 0.0
    for chosen in (style,) if style is not None else STYLES:
        size = mean_size(chosen)
        if size * count <= budget:
            return chosen, size
    return chosen, size


def file_name(wanted: Wanted, opened: Opened) -> str:
    """The same for the same video, whatever it is called: names may hold anything."""
    record = opened.record(wanted)
    assert record is not None
    words = f"{wanted.clips}\n{wanted.video_id}\n{record.source_sha256}"
    return f"{hashlib.sha256(words.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}-{wanted.modality}.webp"


def _mean_size(tried: Sequence[Wanted], opened: Opened, style: Style) -> float:
    sizes = [len(data) for one in tried if (data := _data(one, opened, style)[0]) is not None]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _data(wanted: Wanted, opened: Opened, style: Style) -> tuple[bytes | None, str | None]:
    """The file, or why there is none: a video that cannot be read does not stop a report."""
    clips, record = opened.get(wanted.clips), opened.record(wanted)
    assert clips is not None and record is not None
    try:
        return thumbnail(clips[0], record, wanted.modality, style), None
    except (ValueError, OSError) as error:
        return None, str(error)


def _make(wanted: Wanted, opened: Opened, path: Path, style: Style) -> str | None:
    if path.is_file():
        return None
    data, reason = _data(wanted, opened, style)
    if data is not None:
        temporary = path.with_suffix(".tmp")  # a picture that is lost is made again: no need to flush thousands
        temporary.write_bytes(data)
        temporary.replace(path)
    return reason


def _remove_others(out: Path, folder: Path, names: set[str]) -> None:
    """Pictures of an earlier report into the same folder that this one does not show."""
    for other in out.iterdir():
        if other.is_dir() and other != folder and other.name in {style.name for style in STYLES}:
            shutil.rmtree(other)
    for file in folder.glob("*.webp"):
        if file.name not in names:
            file.unlink()
