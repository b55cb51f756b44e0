"""Open clips of any supported format by their address: a path, perhaps with options (`path?splits=FILE`).

| format | options |
|---|---|
| clip store | none: it has its own splits |
| CoCLR's LMDB | `splits=FILE` (see `split_files`), `flow=FILE` |
| folder of JPEG frames | `splits=FILE`, `bound=20` (of the flow's quantization) |
| images | see `images.uri` |
"""

from collections.abc import Mapping
from pathlib import Path

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.formats.coclr_lmdb import CoclrLmdb, is_lmdb
from covid_cmsf.clips.formats.rawframes import RawFrames, is_rawframes
from covid_cmsf.clips.images.uri import is_image_uri, open_images, parse_options
from covid_cmsf.clips.split_files import read_split_files
from covid_cmsf.clips.store import ClipStore


def open_clips(path: Path | str, *, decoder: str = "auto") -> Clips:
    """Open the clips at `path`: a clip store, an RGB LMDB of CoCLR, a folder of JPEG frames, or a set of images.

    The path may be followed by options: `ucf101_frame.lmdb?splits=ucfTrainTestlist`. See the module, and `images.uri`.

    Example:
        >>> clips = cc.open_clips("clips/ucf101")
        >>> clips.modalities, len(clips.records)
        (('rgb', 'flow'), 24)
    """
    clips = _open(str(path), decoder=decoder)
    clips.address = str(path)
    return clips


def _open(text: str, *, decoder: str) -> Clips:
    location, query = (Path(text), "") if Path(text).exists() else _split_address(text)
    if is_lmdb(location):
        return _open_lmdb(location, parse_options(text, query, ("splits", "flow")))
    if not (location / "store.json").exists() and is_rawframes(location):
        return _open_rawframes(location, parse_options(text, query, ("splits", "bound")), text)
    if not query and location.is_dir() and not is_image_uri(text):
        return ClipStore.open(location, decoder=decoder)
    if (location / "store.json").exists():
        raise ValueError(f"{text}: a clip store has its own splits and takes no options; leave out ?{query}")
    if is_image_uri(text):
        return open_images(text)
    if not location.exists():
        raise FileNotFoundError(f"no clips at {location}")
    return ClipStore.open(location, decoder=decoder)


def _split_address(text: str) -> tuple[Path, str]:
    location, _, query = text.partition("?")
    return Path(location), query


def _open_lmdb(path: Path, options: Mapping[str, str]) -> Clips:
    clips = CoclrLmdb.open(path, Path(options["flow"]) if "flow" in options else None)
    return _add_splits(clips, options)


def _open_rawframes(path: Path, options: Mapping[str, str], text: str) -> Clips:
    try:
        bound = float(options.get("bound", 20))
    except ValueError:
        bound = 0.0
    if not 0 < bound < float("inf"):
        raise ValueError(f"{text}: bound = {options['bound']!r}; it must be a number of pixels above 0")
    return _add_splits(RawFrames.open(path, bound=bound), options)


def _add_splits(clips: CoclrLmdb | RawFrames, options: Mapping[str, str]) -> Clips:
    if "splits" in options:
        clips.splits = read_split_files(Path(options["splits"]), [record.video_id for record in clips.records])
    return clips
