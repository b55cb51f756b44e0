"""The generated data set: bytes, layout, lists, and a folder that is never spoiled."""

import hashlib
from pathlib import Path

import av
import numpy as np
import pytest

from preprocess.synthetic import CLASS_NAMES, DemoConfig, dataset, generate
from preprocess.synthetic.config import ClipName
from preprocess.synthetic.dataset import render_clip

SMALL = DemoConfig(num_classes=2, num_groups=3, clips_per_group=2, num_frames=5, width=48, height=36)


def hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def small_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "videos"
    assert generate(out, SMALL) == SMALL.num_clips == 12
    return out


def test_two_workers_write_the_same_bytes_as_one(small_set: Path, tmp_path: Path) -> None:
    generate(tmp_path / "again", SMALL, workers=2)
    assert hashes(tmp_path / "again") == hashes(small_set)


def test_another_seed_gives_other_videos(small_set: Path, tmp_path: Path) -> None:
    generate(tmp_path / "other", DemoConfig(**{**vars(SMALL), "seed": 1}))
    ours, others = hashes(small_set), hashes(tmp_path / "other")
    assert ours.keys() == others.keys()
    assert all(ours[name] != others[name] for name in ours if name.endswith(".avi"))


def test_a_clip_does_not_depend_on_how_many_others_there_are() -> None:
    name = ClipName("FigureEight", 2, 1)
    more = DemoConfig(**{**vars(SMALL), "num_classes": 12, "num_groups": 9, "clips_per_group": 5})
    np.testing.assert_array_equal(render_clip(name, SMALL), render_clip(name, more))


def test_no_two_videos_are_alike(small_set: Path) -> None:
    videos = [digest for name, digest in hashes(small_set).items() if name.endswith(".avi")]
    assert len(set(videos)) == SMALL.num_clips


def test_files_have_the_names_of_ucf101(small_set: Path) -> None:
    names = {str(path.relative_to(small_set)) for path in small_set.rglob("*.avi")}
    assert names == {
        f"{name}/v_{name}_g{group:02d}_c{number:02d}.avi"
        for name in CLASS_NAMES[:2]
        for group in (1, 2, 3)
        for number in (1, 2)
    }


def test_lists_are_in_the_official_format(small_set: Path) -> None:
    splits = small_set / "splits"
    assert (splits / "classInd.txt").read_bytes() == b"1 Bounce\r\n2 FigureEight\r\n"
    assert (splits / "trainlist01.txt").read_bytes().startswith(b"Bounce/v_Bounce_g02_c01.avi 1\r\n")
    assert (splits / "trainlist01.txt").read_bytes().endswith(b"FigureEight/v_FigureEight_g03_c02.avi 2\r\n")
    assert (splits / "testlist01.txt").read_bytes().startswith(b"Bounce/v_Bounce_g01_c01.avi\r\n")


def test_lists_share_no_group_and_name_every_video(small_set: Path) -> None:
    lists = {subset: (small_set / f"splits/{subset}list01.txt").read_text() for subset in ("train", "test")}
    paths = {subset: {line.split()[0] for line in text.splitlines()} for subset, text in lists.items()}
    groups = {subset: {path.rsplit("_c", 1)[0] for path in some} for subset, some in paths.items()}
    assert groups["train"].isdisjoint(groups["test"])
    assert paths["train"] | paths["test"] == {str(p.relative_to(small_set)) for p in small_set.rglob("*.avi")}


@pytest.mark.parametrize(("num_groups", "num_test_groups"), [(2, 1), (3, 1), (12, 3), (25, 7)])
def test_about_as_many_groups_are_for_testing_as_in_ucf101(num_groups: int, num_test_groups: int) -> None:
    assert DemoConfig(num_groups=num_groups).num_test_groups == num_test_groups


def test_videos_decode_to_what_was_drawn(small_set: Path) -> None:
    name = ClipName("Bounce", 3, 2)
    with av.open(str(small_set / name.path)) as container:
        stream = container.streams.video[0]
        assert stream.average_rate is not None and float(stream.average_rate) == SMALL.fps
        assert (stream.codec_context.name, stream.frames) == ("mpeg4", 5)
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)])
    drawn = render_clip(name, SMALL)
    assert frames.shape == drawn.shape == (5, 36, 48, 3)
    assert np.abs(frames.astype(int) - drawn).mean() < 8


def test_a_complete_set_is_left_alone(small_set: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in small_set.rglob("*.avi")}
    assert generate(small_set, SMALL) == 0
    assert {path: path.stat().st_mtime_ns for path in small_set.rglob("*.avi")} == before


def test_an_interrupted_set_is_continued(small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter(range(100))

    def write_five(out: Path, name: ClipName, config: DemoConfig, write=dataset.write_clip) -> None:  # type: ignore[no-untyped-def]
        if next(calls) == 5:
            (out / name.class_name / ".1234.tmp").write_bytes(b"half a vid")
            raise KeyboardInterrupt
        write(out, name, config)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(dataset, "write_clip", write_five)
        generate(tmp_path / "demo", SMALL)
    seen: list[int] = []
    assert generate(tmp_path / "demo", SMALL, on_progress=seen.append) == 7
    assert seen == list(range(5, 13))
    assert hashes(tmp_path / "demo") == hashes(small_set)


def test_a_set_with_other_settings_is_refused(small_set: Path) -> None:
    with pytest.raises(FileExistsError, match="seed is 0 there, 7 now"):
        generate(small_set, DemoConfig(**{**vars(SMALL), "seed": 7}))


def test_a_foreign_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "holiday.avi").write_bytes(b"mine")
    with pytest.raises(FileExistsError, match="not empty and not a demo set"):
        generate(tmp_path, SMALL)
    assert hashes(tmp_path).keys() == {"holiday.avi"}


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"")
    with pytest.raises(NotADirectoryError, match="is a file"):
        generate(tmp_path / "out", SMALL)


def test_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="workers is 0"):
        generate(tmp_path / "out", SMALL, workers=0)
    assert not (tmp_path / "out").exists()
