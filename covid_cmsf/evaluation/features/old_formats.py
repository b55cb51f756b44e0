"""Headers of features and probabilities files of formats 1 (version 0.1.0) and 2, whose tables are JSON."""

from typing import Any

import torch

from covid_cmsf.evaluation.features.subsets import VideoTable, check_video_table

OLD_NAMES = {  # format 1 -> format 2, of headers of features and probabilities, by the mapping that has them
    "header": {"about": "provenance", "set_aside": "skipped"},
    "provenance": {"part": "branch", "showing": "eval_protocol", "recipe": "config"},
    "eval_protocol": {"protocol": "name"},
    "config": {"backbone_factor": "backbone_lr_factor", "drops": "milestones", "val_share": "val_fraction"},
    "videos": {"parts": "subsets"},
}


def upgrade_header(old: dict[str, Any]) -> dict[str, Any]:
    """Translate a header of format 1 to the names of format 2; other names, and other formats, stay."""

    def rename(values: Any, mapping: str) -> Any:
        if not isinstance(values, dict):
            return values
        translation = OLD_NAMES.get(mapping, {})
        new_names = {str(key): translation.get(str(key), str(key)) for key in values}
        return {new_names[key]: rename(value, new_names[key]) for key, value in values.items()}

    header: dict[str, Any] = rename(old, "header")
    if isinstance(header.get("provenance"), dict) and header["provenance"].get("format") == 1:
        header["provenance"]["format"] = 2
    return header


def video_table_from_json(values: Any, *, location: str) -> VideoTable:
    """Read the table of format 2; ValueError naming `location` if it is inconsistent."""
    try:
        labels = torch.tensor(values["labels"], dtype=torch.int64).view(-1)
        columns = {key: tuple(map(str, values[key])) for key in ("ids", "sources", "subsets", "class_names")}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"{location}: the video table is damaged ({error})") from None
    videos = VideoTable(columns["ids"], columns["sources"], labels, columns["subsets"], columns["class_names"])
    check_video_table(videos, location=location)
    return videos


def skipped_from_json(values: Any, *, location: str) -> tuple[tuple[str, str, str], ...]:
    """Read the skipped videos of format 2; ValueError naming `location` if there are none such."""
    try:
        return tuple((str(video_id), str(subset), str(reason)) for video_id, subset, reason in values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{location}: the list of skipped videos is damaged ({error})") from None
