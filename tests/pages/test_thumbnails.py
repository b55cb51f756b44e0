"""Thumbnails: loops of the middle of a clip, within a budget, each made once, and none where clips are out of reach."""

import io
from pathlib import Path

import pytest
from PIL import Image
from PIL.WebPImagePlugin import WebPImageFile

from covid_cmsf.clips import open_clips
from covid_cmsf.pages.thumbnails import (
    STYLES,
    ClipCollections,
    Style,
    ThumbnailKey,
    choose_style,
    loop_frames,
    make_thumbnails,
    thumbnail,
)
from tests.evaluation.factories import SyntheticClips
from tests.factories import make_image_folder

PLENTY = 1e9


@pytest.mark.parametrize(("count", "frames"), [(100, [34, 38, 43, 47, 52, 56, 61, 65]), (5, [0, 1, 2, 3, 4]), (1, [0])])
def test_a_loop_goes_evenly_over_the_middle(count: int, frames: list[int]) -> None:
    assert loop_frames(count, 8) == frames


@pytest.mark.parametrize("modality", ["rgb", "flow"])
def test_a_thumbnail_is_a_loop_of_small_pictures(clips: Path, modality: str) -> None:
    store = open_clips(clips)
    with Image.open(io.BytesIO(thumbnail(store, store.records[0], modality, Style(24, 8, 50)))) as picture:
        assert isinstance(picture, WebPImageFile) and picture.n_frames == 8 and picture.size == (32, 24)
        assert picture.info["loop"] == 0


def test_an_image_is_a_still(tmp_path: Path) -> None:
    images = open_clips(make_image_folder(tmp_path / "set"))
    with Image.open(io.BytesIO(thumbnail(images, images.records[0], "rgb", STYLES[0]))) as picture:
        assert isinstance(picture, WebPImageFile) and picture.n_frames == 1 and picture.size == (20, 20)


def test_the_finest_style_that_fits_is_chosen() -> None:
    def size(style: Style) -> float:
        return 50.0 * style.edge

    for budget in (0.0, 25_000.0, 26_000.0, 1e9):
        slow = [style for style in STYLES if 10 * size(style) <= budget]
        chosen, bytes_each = choose_style(size, 10, budget)
        assert chosen == (slow[0] if slow else STYLES[-1]) and bytes_each == size(chosen)
    assert choose_style(size, 10, 1e9, STYLES[2])[0] == STYLES[2]


def test_pictures_are_made_once_and_others_removed(clips: Path, tmp_path: Path) -> None:
    records = open_clips(clips).records
    wanted = [ThumbnailKey(str(clips), record.video_id, "rgb") for record in records[:5]]
    opened = ClipCollections()
    first = make_thumbnails([*wanted, *wanted], opened, tmp_path, budget=PLENTY)
    assert len(first.made) == 5 and not first.failures
    folder = tmp_path / first.folder
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = make_thumbnails(wanted[:3], opened, tmp_path, budget=PLENTY)
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == {
        name: times[name] for name in again.made.values()
    }


def test_what_does_not_fit_is_left_out_last_first(clips: Path, tmp_path: Path) -> None:
    records = open_clips(clips).records
    wanted = [ThumbnailKey(str(clips), record.video_id, "rgb") for record in records[:20]]
    some = make_thumbnails(wanted, ClipCollections(), tmp_path, budget=4000)
    assert some.folder == STYLES[-1].name and list(some.made) == wanted[: len(some.made)]
    assert 0 < len(some.made) < 20 and some.num_omitted == 20 - len(some.made)
    assert sum(path.stat().st_size for path in (tmp_path / some.folder).iterdir()) < 4000


def test_a_video_that_cannot_be_read_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clips = SyntheticClips(broken=[2])
    monkeypatch.setattr("covid_cmsf.pages.thumbnails.open_clips", lambda address: clips)
    wanted = [ThumbnailKey("synthetic", record.video_id, "flow") for record in clips.records[:4]]
    pictures = make_thumbnails(wanted, ClipCollections(), tmp_path, budget=PLENTY)
    assert len(pictures.made) == 3 and pictures.failures == [f"{clips.records[2].video_id} (flow): damaged"]


def test_clips_out_of_reach_have_a_reason_and_no_pictures(tmp_path: Path, clips: Path) -> None:
    opened = ClipCollections()
    gone = str(tmp_path / "gone")
    assert not make_thumbnails([ThumbnailKey(gone, "a", "rgb")], opened, tmp_path, budget=PLENTY).made
    assert "no clips at" in opened.reasons[gone]
    record = open_clips(clips).records[0]
    assert make_thumbnails(
        [ThumbnailKey(gone, record.video_id, "rgb")], ClipCollections(str(clips)), tmp_path, budget=PLENTY
    ).made
