"""What a model card is written from: the files of a run, and which of its measures are of the shared weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from covid_cmsf.cotrain.gains import GAINS_FILE, read_gains
from covid_cmsf.evaluation.features.file import FEATURES_HEADER
from covid_cmsf.report.provenance import read_starts
from covid_cmsf.report.run_files import Unlabeled, Values, read_values
from covid_cmsf.report.runs import FEATURES, read_run
from covid_cmsf.training.run_dir import CONFIG_FILE
from covid_cmsf.verified_files import read_metadata

PRIVATE_SECTIONS = ("runtime", "logging")  # of a configuration: they say nothing about the encoder


@dataclass(frozen=True)
class RunFiles:
    """Contents of a run's files; a mapping is empty if its file does not exist or is not of the shared weights."""

    name: str
    config: Values
    summary: Values = field(default_factory=dict)
    start: Values = field(default_factory=dict)  # the last line of environment.jsonl
    stage: Values = field(default_factory=dict)
    retrieval: Values = field(default_factory=dict)
    linear: Values = field(default_factory=dict)
    unlabeled: Values = field(default_factory=dict)
    gains: tuple[Values, ...] = ()  # of this stage
    left_out: tuple[str, ...] = ()  # files with measures of other weights

    @property
    def provenance(self) -> Values:
        """Where the measured features come from; empty without labeled measures."""
        return features_provenance(self.retrieval) or features_provenance(self.linear)

    @property
    def is_measured(self) -> bool:
        """Whether there is any measure of these weights."""
        return bool(self.retrieval or self.linear or self.unlabeled)


def find_run(source: Path) -> Path | None:
    """Return the folder of the run that a run folder or checkpoint belongs to; None for any other weights file."""
    folder = source if source.is_dir() else source.parent.parent
    inside = source.is_dir() or source.parent.name == "checkpoints"
    return folder if inside and (folder / CONFIG_FILE).is_file() else None


def read_run_files(folder: Path, weights_sha256: str) -> RunFiles:
    """Read a run's files; measures of other weights than these (another branch, an earlier epoch) are left out."""
    stage = read_run(folder, folder.resolve().name).stages[0]
    notes = list(stage.notes)
    unlabeled = read_values(folder / "unlabeled.json", Unlabeled, notes)
    if notes:
        raise ValueError("; ".join(notes))
    found = {
        "retrieval.json": (stage.retrieval, features_provenance(stage.retrieval)),
        "linear.json": (stage.linear, features_provenance(stage.linear)),
        "unlabeled.json": (unlabeled, _header_provenance(folder / FEATURES)),  # it has no hash of its own
    }
    same = {
        name: values if provenance.get("weights_sha256") == weights_sha256 else {}
        for name, (values, provenance) in found.items()
    }
    measured = bool(same["retrieval.json"])
    starts = read_starts(folder / "environment.jsonl")
    return RunFiles(
        name=folder.resolve().name,
        config=without_folders({k: v for k, v in stage.raw_config.items() if k not in PRIVATE_SECTIONS}),
        summary=stage.summary,
        start=starts[-1] if starts else {},
        stage=stage.result if measured else {},
        retrieval=same["retrieval.json"],
        linear=same["linear.json"],
        unlabeled=same["unlabeled.json"],
        gains=_stage_gains(folder) if measured else (),
        left_out=tuple(name for name, (values, _) in found.items() if values and not same[name]),
    )


def features_provenance(result: Mapping[str, Any]) -> Values:
    """Return the provenance of the features that a result was computed from."""
    features: list[Values] = result.get("features") or [{}]
    return features[0]


def without_folders(value: Any) -> Any:
    """Return plain values with every path reduced to its name: folders of a machine are nobody else's business.

    `runs/a/checkpoints/last.pt` becomes `a`, the run's name.
    """
    if isinstance(value, dict):
        return {key: without_folders(one) for key, one in value.items()}
    if isinstance(value, list):
        return [without_folders(one) for one in value]
    if not isinstance(value, str) or "/" not in value:
        return value
    start, option, location = value.rpartition("=")  # timm:NAME?weights=FILE
    path = Path(location)
    name = path.parent.parent.name if path.parent.name == "checkpoints" else path.name
    return f"{without_folders(start)}{option}{name}"


def _header_provenance(path: Path) -> Values:
    header = read_metadata(path).get(FEATURES_HEADER)
    values: Values = json.loads(header).get("provenance", {}) if header else {}
    return values


def _stage_gains(folder: Path) -> tuple[Values, ...]:
    """Return the gains of a plan's stage; they are in the plan's folder, above those of splits and seeds."""
    folder = folder.resolve()
    plan = next((parent for parent in list(folder.parents)[:3] if (parent / GAINS_FILE).is_file()), None)
    return () if plan is None else tuple(row for row in read_gains(plan) if row["stage"] == folder.name)
