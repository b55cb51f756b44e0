"""Fingerprints: of a collection of clips, of settings. What has the same one is the same."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from covid_cmsf.clips.interface import Clips


def clips_sha256(clips: Clips) -> str:
    """Over the manifest (with the hashes of the original videos) and, of our own stores, how they were made."""
    info = getattr(clips, "info", None)
    made = info.model_dump(mode="json", exclude={"software"}) if info is not None else {}
    records = [asdict(record) for record in clips.records]
    return fingerprint({"clips": records, "modalities": clips.modalities, "bound": clips.flow_bound, "made": made})


def fingerprint(values: Mapping[str, Any]) -> str:
    """SHA-256 of a mapping's JSON text, keys sorted."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
