"""From real UCF-101 files to a table: preprocessing, InfoNCE on both modalities, a guided stage, retrieval, probe."""

from pathlib import Path

import pytest
import yaml

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.run import load_plan, run_plan
from tests.cotrain.conftest import CMSF, DEFAULTS, PRETRAIN
from tests.preprocess.commands import preprocess

GROUPS = ("01", "02", "08", "09", "10", "11")  # two for testing, four for training


@pytest.mark.real
@pytest.mark.slow
def test_a_plan_runs_on_real_clips(real_videos: Path, tmp_path: Path) -> None:
    for name in ("Archery", "Surfing"):
        chosen = [p for p in sorted((real_videos / name).glob("*.avi")) if p.name.split("_g")[1][:2] in GROUPS]
        assert len(chosen) == len(GROUPS)
        (tmp_path / "videos" / name).mkdir(parents=True)
        for path in chosen:
            (tmp_path / "videos" / name / path.name).symlink_to(path)
    done = preprocess(tmp_path / "videos", tmp_path / "clips", "--max-frames", "12", "--short-edge", "64")
    assert done.returncode == 0, done.stderr
    values = {
        "defaults": {**DEFAULTS, "clips": str(tmp_path / "clips")},
        "rounds": 1,
        "first": "rgb",
        "pretrain": PRETRAIN,
        "cmsf": CMSF,
    }
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(values))
    code, rows = run_plan(load_plan(tmp_path / "plan.yaml", []), tmp_path / "out", plan_dir=tmp_path)
    assert code == exit_codes.SUCCESS and len(rows) == 4
    assert all(row["r1"] is not None and row["linear"] is not None for row in rows)
