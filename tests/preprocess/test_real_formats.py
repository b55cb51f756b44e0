"""Real clips through every door: a list with cuts, an archive, and exports that are read back."""

import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.export import export_clips
from covid_cmsf.clips.records import clip_path
from preprocess.layouts import scan_collection
from tests.preprocess.commands import preprocess

pytestmark = [pytest.mark.real, pytest.mark.slow]
OPTIONS = ("--modalities", "rgb", "--short-edge", "120")


def frames_of(path: Path, **options: float) -> NDArray[np.uint8]:
    with open_video(path) as video:
        return np.stack(list(islice(video.frames(**options), 40)))


@pytest.fixture(scope="module")
def videos(real_videos: Path) -> list[Path]:
    """Four clips of two classes."""
    return [path for name in ("Archery", "Surfing") for path in sorted((real_videos / name).glob("*.avi"))[:8:4]]


def test_cuts_of_a_list_are_the_parts_between_their_times(videos: list[Path], tmp_path: Path) -> None:
    rows = ["file,label,start,end"]
    rows += [f"{path},{path.parent.name},{start},{start + 1}" for path in videos[::2] for start in (0.5, 1.5)]
    (tmp_path / "list.csv").write_text("\n".join(rows) + "\n")
    done = preprocess(tmp_path / "list.csv", tmp_path / "clips", *OPTIONS, "--short-edge", "0", layout="list")
    assert done.returncode == 0, done.stderr
    store = ClipStore.open(tmp_path / "clips")
    assert len(store.records) == 4 and len({record.source for record in store.records}) == 2
    for record in store.records:
        path = next(one for one in videos if one.stem in record.video_id)
        assert (record.class_name, record.cut_end - record.cut_start) == (path.parent.name, 1)
        stored = frames_of(clip_path(store.path, "rgb", record.video_id))
        expected, other = (
            frames_of(path, start=start, end=start + 1) for start in (record.cut_start, 2 - record.cut_start)
        )
        assert len(stored) == record.num_frames == len(expected)
        error, moved = (np.abs(stored.astype(int) - one[: len(stored)]).mean() for one in (expected, other))
        assert error < 4 and error < moved / 2, "the encoding loses little, another second is another picture"


def test_an_archive_and_both_exports_give_the_same_clips(videos: list[Path], tmp_path: Path) -> None:
    folder, archive = tmp_path / "videos", tmp_path / "videos.tar"
    for path in videos:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / path.parent.name / path.name).symlink_to(path)
    with tarfile.open(archive, "w", dereference=True) as file:
        file.add(folder, arcname=".")
    stores = {}
    for name, source, layout in (("folder", folder, "ucf101"), ("archive", archive, "archive")):
        done = preprocess(source, tmp_path / name, *OPTIONS, layout=layout)
        assert done.returncode == 0, done.stderr
        stores[name] = ClipStore.open(tmp_path / name)
    hashes = [sorted(record.rgb_sha256 for record in store.records) for store in stores.values()]
    assert hashes[0] == hashes[1] and len(set(hashes[0])) == 4
    first = stores["folder"]
    export_clips(first, tmp_path / "folders", to="huggingface")
    found = {
        video.video_id: video.path.read_bytes() for video in scan_collection("huggingface", tmp_path / "folders").videos
    }
    stored = {one.video_id: clip_path(first.path, "rgb", one.video_id).read_bytes() for one in first.records}
    assert found == stored
    export_clips(first, tmp_path / "shards", to="webdataset")
    done = preprocess(tmp_path / "shards", tmp_path / "again", *OPTIONS, layout="archive")
    assert done.returncode == 0, done.stderr
    again = ClipStore.open(tmp_path / "again")
    keys = ("video_id", "class_name", "label", "source", "num_frames", "width", "height")
    values = [[[getattr(one, key) for key in keys] for one in store.records] for store in (first, again)]
    assert values[0] == values[1]
    for record in first.records:
        once, twice = (frames_of(clip_path(one.path, "rgb", record.video_id)) for one in (first, again))
        assert np.abs(once.astype(int) - twice).mean() < 3, "encoded a second time"
