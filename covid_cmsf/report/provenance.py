"""Provenance of every stage: configuration, commands, versions, machines, durations and hashes."""

import shlex
from pathlib import Path
from typing import Any

from covid_cmsf.files import read_text
from covid_cmsf.report import run_files
from covid_cmsf.report.runs import PLAN_FILE, PlanRun, SeedRun, StageRun
from covid_cmsf.training.run_dir import CONFIG_FILE


def plan_provenance(plan: PlanRun) -> dict[str, Any]:
    """Return the provenance of a plan or run, and of each stage that has started."""
    stages = [_stage_provenance(stage, one) for one in plan.seeds for stage in one.stages if stage.folder.is_dir()]
    commands = dict.fromkeys(start["command"] for stage in stages for start in stage["starts"])
    path = plan.folder / PLAN_FILE
    return {
        "folder": str(plan.folder.resolve()),
        "plan": read_text(path) if path.is_file() else None,
        "commands": list(commands),
        "stages": stages,
    }


def _stage_provenance(stage: StageRun, one: SeedRun) -> dict[str, Any]:
    starts = read_starts(stage.folder / "environment.jsonl")
    config = stage.folder / CONFIG_FILE
    return {
        "name": stage.name,
        "run": one.label,
        "state": stage.state,
        "config": read_text(config) if config.is_file() else None,
        "starts": starts,
        "seconds": stage.summary.get("progress", {}).get("seconds"),
        "total_seconds": stage.result.get("seconds_last_start"),
        "hashes": collect_hashes(stage),
        "num_skipped": _features_provenance(stage).get("num_skipped"),
    }


def read_starts(path: Path) -> list[dict[str, Any]]:
    """Read environment.jsonl, with commands for a shell."""
    return [{**one, "command": shell_command(one.get("command", []))} for one in run_files.read_starts(path)]


PROGRAMS = ("covid-cmsf", "python -m covid_cmsf")


def resume_command(plan: PlanRun) -> str:
    """Return the command that goes on with a plan or run: the last one on record, else one that reads its settings."""
    stages = [stage for one in plan.seeds for stage in one.stages]
    starts = [start for stage in stages for start in read_starts(stage.folder / "environment.jsonl")]
    names = ("train",) if plan.config is None else ("cotrain", "learn")  # of a plan not a stage's `train`
    own = tuple(f"{program} {name} " for program in PROGRAMS for name in names)
    whole = [start for start in starts if start["command"].startswith(own) and "--only" not in start["command"]]
    if whole:
        return str(max(whole, key=lambda start: str(start.get("time", "")))["command"])
    if plan.config is None:
        return shell_command(["covid-cmsf", "train", str(plan.folder / CONFIG_FILE), "--out", str(plan.folder)])
    return shell_command(["covid-cmsf", "cotrain", str(plan.folder / PLAN_FILE), "--out", str(plan.folder)])


def shell_command(argv: list[str]) -> str:
    """Format `sys.argv` as a shell command."""
    if not argv:
        return ""
    path = Path(argv[0])
    start = [argv[0]]
    if path.name == "covid-cmsf":
        start = [path.name]
    elif path.name == "__main__.py" and path.parent.name == "covid_cmsf":
        start = ["python", "-m", "covid_cmsf"]
    return shlex.join([*start, *argv[1:]])


def collect_hashes(stage: StageRun) -> dict[str, str]:
    """Return the SHA-256 of checkpoint, guides, encoder, clips and features, and the stage's key."""
    digests: dict[str, str] = {}
    newest = run_files.last_checkpoint(stage.folder / "checkpoints" / "index.json")
    if newest is not None:
        digests[f"checkpoint {newest.file}"] = newest.sha256
    for column, guide in stage.summary.get("guides", {}).items():
        digests[f"guide {column.removeprefix('guide_')}"] = guide["sha256"]
    provenance = _features_provenance(stage)
    names = {"weights_sha256": "encoder's tensors", "store_sha256": "clips", "fingerprint": "features"}
    digests |= {label: provenance[name] for name, label in names.items() if provenance.get(name)}
    if stage.result.get("key"):
        digests["key of the stage"] = stage.result["key"]
    return digests


def _features_provenance(stage: StageRun) -> dict[str, Any]:
    features: list[dict[str, Any]] = stage.retrieval.get("features") or [{}]
    return features[0]
