"""A skipped video that was accepted no longer breaks a chain of commands."""

import shutil
from pathlib import Path

import pytest
import typer

from covid_cmsf import exit_codes
from covid_cmsf.cli.options import report_skipped
from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.acceptance import accept_failures
from covid_cmsf.clips.records import Failure, write_failures
from covid_cmsf.evaluation.features.subsets import load_split
from tests.factories import make_ucf
from tests.preprocess.commands import preprocess


@pytest.fixture(scope="module")
def broken_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos that were converted and one that was skipped."""
    root = tmp_path_factory.mktemp("accept")
    make_ucf(root / "videos", classes=1, groups=2, num_frames=3)
    (root / "videos" / "Archery" / "v_Archery_g09_c01.avi").write_bytes(b"no video")
    assert preprocess(root / "videos", root / "clips", "--modalities", "rgb").returncode == exit_codes.SKIPPED_ITEMS
    return root


@pytest.mark.slow
def test_the_list_of_skipped_videos_says_what_was_accepted(broken_store: Path, tmp_path: Path) -> None:
    clips = Path(shutil.copytree(broken_store / "clips", tmp_path / "clips"))
    missing = load_split(ClipStore.open(clips), "1").missing
    with pytest.raises(typer.Exit) as stop:
        report_skipped(missing)
    assert stop.value.exit_code == exit_codes.SKIPPED_ITEMS
    accept_failures(clips)
    accepted = load_split(ClipStore.open(clips), "1").missing
    assert [entry[2] for entry in accepted] == [f"accepted: {entry[2]}" for entry in missing] and len(missing) == 1
    report_skipped(accepted)
    assert preprocess(broken_store / "videos", clips, "--modalities", "rgb").returncode == exit_codes.SUCCESS
    write_failures(clips / "failures.csv", [Failure(accepted[0][0], "decode", "something else")])
    with pytest.raises(typer.Exit):
        report_skipped(load_split(ClipStore.open(clips), "1").missing)


def test_one_that_is_not_accepted_is_enough(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit):
        report_skipped([("a", "test", "accepted: open: x"), ("b", "test", "open: y")])
    text = capfd.readouterr().err
    assert "skipped: b" in text and "skipped: a" not in text and "1 accepted videos have no result" in text
