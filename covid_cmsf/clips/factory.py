"""Open clips of any supported format."""

from pathlib import Path

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.formats.coclr_lmdb import CoclrLmdb, is_lmdb
from covid_cmsf.clips.formats.rawframes import RawFrames, is_rawframes
from covid_cmsf.clips.images.uri import is_image_uri, open_images
from covid_cmsf.clips.store import ClipStore


def open_clips(path: Path | str, *, decoder: str = "auto") -> Clips:
    """Open the clips at `path`: a clip store, an RGB LMDB of CoCLR, a folder of JPEG frames, or a set of images.

    A set of images may also be a URI with options, see `images.uri`.

    Example:
        >>> clips = cc.open_clips("clips/ucf101")
        >>> clips.modalities, len(clips.records)
        (('rgb', 'flow'), 24)
    """
    if is_image_uri(str(path)):
        return open_images(str(path))
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no clips at {path}")
    if is_lmdb(path):
        return CoclrLmdb.open(path)
    if not (path / "store.json").exists() and is_rawframes(path):
        return RawFrames.open(path)
    return ClipStore.open(path, decoder=decoder)
