"""Are features still those of their checkpoint and videos? Hashes that were stored with them are compared.

A features file has the hash of its checkpoint, a fingerprint of the stored video files (sizes, times of change),
and where both were, relative to its own folder. What is no longer there can't be compared.
"""

import logging
import os
from pathlib import Path

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.fingerprint import files_fingerprint
from covid_cmsf.evaluation.features.file import Features, Provenance, load_features
from covid_cmsf.evaluation.features.model import load_eval_model
from covid_cmsf.files import file_sha256
from covid_cmsf.models.encoder import weights_sha256

logger = logging.getLogger(__name__)


def load_current_features(path: Path | str, *, allow_stale: bool = False) -> Features:
    """Read a features file; ValueError if its checkpoint or videos have changed since, with `allow_stale` a warning."""
    features = load_features(path)
    reason = stale_reason(Path(path), features.provenance)
    if reason is None:
        return features
    if not allow_stale:
        raise ValueError(f"{path} is stale: {reason}; extract it again, or go on with --allow-stale")
    logger.warning("%s is stale: %s", path, reason)
    return features


def stale_reason(path: Path, provenance: Provenance, *, checkpoint: Path | None = None) -> str | None:
    """Return why the features file at `path` is no longer current; None if nothing says so.

    `checkpoint` is where a file that does not say it, of an older format, has its checkpoint.
    """
    if provenance.checkpoint_path:
        checkpoint = path.parent / provenance.checkpoint_path
    if checkpoint is not None and checkpoint.is_file() and _is_other_encoder(checkpoint, provenance):
        return f"{os.path.normpath(checkpoint)} has changed since"
    clips = path.parent / provenance.clips_path
    if not provenance.clips_path or not clips.exists():
        return None
    name = os.path.normpath(clips)
    try:
        opened, modality = open_clips(clips), provenance.eval_protocol.resolve_modality().stored_modality
        current = files_fingerprint(opened, opened.records, (modality,))
    except (ValueError, OSError) as error:
        return f"its clips can't be opened any more ({error})"
    return None if current == provenance.videos_sha256 else f"video files of {name} were replaced or changed since"


def _is_other_encoder(checkpoint: Path, provenance: Provenance) -> bool:
    """Whether the file, and the encoder in it, are not those of the features."""
    if not provenance.checkpoint_sha256 or file_sha256(checkpoint) == provenance.checkpoint_sha256:
        return False
    try:
        network = load_eval_model(checkpoint, branch=provenance.branch).network
    except (ValueError, OSError):
        return True
    return weights_sha256(network) != provenance.weights_sha256


def relative_path(target: Path | None, out: Path) -> str:
    """Return where `target` is, seen from the folder of `out`; empty if it is not there."""
    if target is None or not target.exists():
        return ""
    return Path(os.path.relpath(target.absolute(), out.absolute().parent)).as_posix()
