"""Opening clips of any format that we know."""

from pathlib import Path

from covid_cmsf.clips.coclr_lmdb import CoclrLmdb, is_lmdb
from covid_cmsf.clips.images.address import is_image_address, open_images
from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.jpeg_folder import JpegFolder, is_jpeg_folder
from covid_cmsf.clips.store import ClipStore


def open_clips(path: Path | str, *, decoder: str = "auto") -> Clips:
    """Whatever lies at `path`: a clip store, an RGB LMDB of CoCLR, a folder of JPEG frames, or a set of images.

    Sets of images may be given by an address with options (`images.address`).
    """
    if is_image_address(str(path)):
        return open_images(str(path))
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no clips at {path}")
    if is_lmdb(path):
        return CoclrLmdb.open(path)
    if not (path / "store.json").exists() and is_jpeg_folder(path):
        return JpegFolder.open(path)
    return ClipStore.open(path, decoder=decoder)
