"""Has anything changed that a report is made from?"""

from collections.abc import Sequence
from pathlib import Path

from covid_cmsf.report.file_cache import Stamp, stamp
from covid_cmsf.report.plan_folder import PLAN, read_folders
from covid_cmsf.report.stage_folder import FEATURES

WATCHED = ("config.yaml", "metrics.jsonl", "stage.json", "summary.json", "retrieval.json", "linear.json", FEATURES)


def stamps(paths: Sequence[Path]) -> dict[Path, Stamp]:
    """Of all files that matter in these folders of plans and runs, as far as they are there."""
    folders = read_folders(paths)
    watched = [plan.folder / PLAN for plan in folders]
    watched += [stage.folder / name for plan in folders for stage in plan.stages for name in WATCHED]
    return {path: stamp(path) for path in watched if path.is_file()}
