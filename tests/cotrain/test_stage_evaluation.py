"""What a plan's evaluation says: unreadable videos, shared sources, replaced videos. Stages without training."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from covid_cmsf import exit_codes
from covid_cmsf.cotrain.run import load_plan, run_plan
from covid_cmsf.cotrain.table import markdown, screen_table
from covid_cmsf.preflight import PreflightError

pytestmark = pytest.mark.slow


@pytest.fixture
def own_clips(clips: Path, tmp_path: Path) -> Path:
    """A copy of the store that a test may change."""
    return Path(shutil.copytree(clips, tmp_path / "clips"))


def run(own_clips: Path, **evaluation: object) -> tuple[int, list[dict[str, Any]]]:
    values = {
        "defaults": {"clips": str(own_clips), "views": {"length": 8, "size": 32}},
        "stages": [{"name": "color", "histogram": "color", "modality": "rgb"}],
        "evaluation": {"windows": 1, **evaluation},
    }
    path = own_clips.parent / "plan.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return run_plan(load_plan(path, []), own_clips.parent / "out", plan_dir=path.parent)


def first_of(own_clips: Path, subset: str) -> str:
    rows = (own_clips / "splits" / "1.csv").read_text().splitlines()[1:]
    return next(row.split(",")[0].strip('"') for row in rows if row.split(",")[1].strip('"') == subset)


def test_an_unreadable_test_video_is_counted_said_and_exit_3(own_clips: Path, caplog: pytest.LogCaptureFixture) -> None:
    code, rows = run(own_clips)
    whole = rows[0]["num_query"]
    assert code == exit_codes.SUCCESS and rows[0]["num_skipped"] == 0 and f"| {whole} |" in markdown(rows)
    broken = first_of(own_clips, "test")
    (own_clips / "rgb" / f"{broken}.mp4").write_bytes(b"nothing")
    shutil.rmtree(own_clips.parent / "out")
    with caplog.at_level(logging.WARNING):
        code, rows = run(own_clips)
    assert code == exit_codes.SKIPPED_ITEMS
    assert (rows[0]["num_query"], rows[0]["num_skipped"]) == (whole - 1, 1)
    assert f"| {whole - 1}, 1 skipped |" in markdown(rows)
    assert f"stage color: 1 videos have no result (1 of subset test), for example {broken} (test)" in caplog.text
    assert "N" in [column.header for column in screen_table(rows, "", width=80).columns]
    assert run(own_clips)[0] == exit_codes.SKIPPED_ITEMS  # and again, when nothing is left to do


def test_a_plan_can_allow_shared_sources(own_clips: Path) -> None:
    split = own_clips / "splits" / "1.csv"
    manifest = own_clips / "manifest.csv"
    source = {row.split(",")[0]: row.split(",")[1] for row in manifest.read_text().splitlines()}
    train, test = (f'"{first_of(own_clips, subset)}"' for subset in ("train", "test"))
    manifest.write_text(manifest.read_text().replace(source[train], source[test]))  # same class: the first one
    assert split.is_file()
    with pytest.raises(PreflightError, match=r"with clips of the same class.*evaluation\.allow_shared_sources"):
        run(own_clips)
    assert not (own_clips.parent / "out").exists()
    code, _ = run(own_clips, allow_shared_sources=True)
    result = json.loads((own_clips.parent / "out" / "color" / "retrieval.json").read_text())
    assert code == exit_codes.SUCCESS and result["overlap"]["num_sibling_sources"] == 1


def test_tables_say_what_chance_is(own_clips: Path) -> None:
    _, rows = run(own_clips)
    assert "R@1 of a random ranking: 33.3" in markdown(rows)
    assert screen_table(rows, "", width=120).caption == "R@1 of a random ranking: 33.3"


def test_replaced_videos_are_measured_again_without_training_again(own_clips: Path) -> None:
    features = own_clips.parent / "out" / "color" / "features.safetensors"
    _, first = run(own_clips)
    before = features.read_bytes()
    assert run(own_clips)[1] == first and features.read_bytes() == before
    videos = [own_clips / "rgb" / f"{first_of(own_clips, subset)}.mp4" for subset in ("train", "test")]
    videos[0].write_bytes(videos[1].read_bytes())
    code, rows = run(own_clips)
    assert features.read_bytes() != before
    # The store knows the sizes of its files, so the replaced one is also named and left out.
    assert code == exit_codes.SKIPPED_ITEMS and rows[0]["num_skipped"] == 1
