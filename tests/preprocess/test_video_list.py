"""Lists of videos: what they say, what is wrong with them, and clips that are cut out of longer files."""

import json
import os
from pathlib import Path

import av
import numpy as np
import pytest

from covid_cmsf import exit_codes
from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.maintenance import check_store
from covid_cmsf.evaluation.features.subsets import VideoTable
from preprocess.layouts import Collection, default_layout, scan_collection
from tests.factories import moving_square, write_video
from tests.preprocess.commands import hash_tree, preprocess

RGB = ("--modalities", "rgb")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a.avi and short_header.mpg of 4 s, b.mp4 and deep/c.avi of 1 s; all of 25 frames/s."""
    folder = tmp_path_factory.mktemp("videos")
    write_video(folder / "a.avi", moving_square(100, seed=1))
    write_video(folder / "b.mp4", moving_square(25, seed=2), codec="libx264")
    write_video(folder / "deep" / "c.avi", moving_square(25, seed=3))
    write_video(folder / "short_header.mpg", moving_square(100), codec="mpeg2video")
    return folder


def write_list(folder: Path, text: str, name: str = "list.csv") -> Path:
    """Write a list whose files are in `folder`."""
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def scan(path: Path, test_fraction: float | None = None) -> Collection:
    return scan_collection("list", path, test_fraction=test_fraction)


def test_a_csv_list_has_labels_sources_subsets_and_cuts(videos: Path) -> None:
    rows = "a.avi,x,,train,0,1.5\na.avi,y,,test,1.5,\ndeep/c.avi,,film,val,,\n"
    collection = scan(write_list(videos, f"file,label,source,subset,start,end\n{rows}"))
    found = [
        (v.video_id, v.class_name, v.label, v.source, v.cut_start, v.cut_end, v.path.name) for v in collection.videos
    ]
    assert found == [
        ("a_0-1.5", "x", 0, "a", 0, 1.5, "a.avi"),
        ("a_1.5-end", "y", 1, "a", 1.5, 0, "a.avi"),
        ("deep/c", "", -1, "film", 0, 0, "c.avi"),
    ]
    assert collection.splits == {"1": {"a_0-1.5": "train", "a_1.5-end": "test", "deep/c": "val"}}
    assert collection.warnings == []


def test_a_jsonl_list_is_the_same_collection(videos: Path) -> None:
    rows = [{"file": "a.avi", "start": 0.5, "end": 2, "label": 7}, {"file": "b.mp4", "label": None, "id": "u/v"}]
    lines = "\n\n".join(json.dumps(row) for row in rows)
    table = write_list(videos, "file,start,end,label,id\na.avi,0.5,2,7,\nb.mp4,,,,u/v\n")
    assert scan(write_list(videos, lines, "list.jsonl")) == scan(table)
    assert [video.video_id for video in scan(table).videos] == ["a_0.5-2", "u/v"]


def test_a_list_without_subsets_is_for_training_or_is_split_by_source(videos: Path) -> None:
    rows = "".join(f"a.avi,{i / 10},{i / 10 + 0.1},x\n" for i in range(8)) + "b.mp4,,,x\ndeep/c.avi,,,x\n"
    path = write_list(videos, f"file,start,end,label\n{rows}")
    assert set(scan(path).splits["1"].values()) == {"train"}
    collection = scan(path, test_fraction=0.4)
    split = collection.splits["1"]
    subsets_of_a = {split[video.video_id] for video in collection.videos if video.source == "a"}
    assert set(split.values()) == {"train", "test"} and len(subsets_of_a) == 1
    with pytest.raises(ValueError, match="subsets of its own"):
        scan(write_list(videos, "file,subset\na.avi,train\n"), test_fraction=0.4)


def test_files_outside_of_the_lists_folder_have_ids_inside_of_the_store(videos: Path, tmp_path: Path) -> None:
    relative = os.path.relpath(videos / "a.avi", tmp_path)
    inside = write_video(tmp_path / "x.avi", moving_square(2))
    path = write_list(tmp_path, f"file\n{relative}\n{videos / 'b.mp4'}\n{inside}\n")
    ids = [video.video_id for video in scan(path).videos]
    assert "x" in ids and not any(name.startswith(("/", ".")) for name in ids) and len(ids) == 3


def test_a_file_is_a_list_by_its_name(videos: Path, tmp_path: Path) -> None:
    assert [default_layout(videos / name) for name in ("x.csv", "x.JSONL", "deep")] == ["list", "list", "folder"]
    (tmp_path / "folder.csv").mkdir()
    assert default_layout(tmp_path / "folder.csv") == "folder"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.avi,x\n", "line 1: no column file; the columns are path, label"),
        ("file,lable\na.avi,x\n", "line 1: unknown column 'lable'; did you mean 'label'"),
        ("file,file\na.avi,a.avi\n", "line 1: a column is there twice"),
        ("file,label\na.avi\n", "line 2: 1 cells, the header has 2"),
        ('file,label\na.avi,"x"y\n', "line 2: not CSV"),
        ("file,label\n\n,x\n", "line 3: no file"),
        ("file\ndeep\n", "deep is a folder"),
        (f"file\n{'n' * 300}.avi\n", "can't be read: File name too long"),
        ("file,start,end\na.avi,2,2\n", "line 2: the end, 2 s, is not after the start, 2 s"),
        ("file,end\na.avi,0\n", "the end, 0 s, is not after the start, 0 s"),
        ("file,start\na.avi,-1\n", "start is '-1', not a number of seconds"),
        ("file,start\na.avi,00:10\n", "start is '00:10', not a number of seconds"),
        ("file,end\na.avi,nan\n", "end is 'nan'"),
        ("file,end\na.avi,inf\n", "end is 'inf'"),
        ("file,start\na.avi,4\n", r"the start, 4 s, is after the end of .*a\.avi \(4\.00 s\)"),
        ("file,start\nshort_header.mpg,3.9\nshort_header.mpg,4\n", "line 3: the start, 4 s, is after the end of"),
        ("file,subset\na.avi,training\n", "subset is 'training'; expected one of train, test, val"),
        ("file,subset\na.avi,train\nb.mp4,\n", "line 3: subset is ''"),
        ("file,id\na.avi,../x\n", r"id '\.\./x' is no relative path: a part of it is '\.\.'"),
        ("file,id\na.avi,/x\n", "id '/x' is no relative path: it is an absolute path"),
        ("file,id\na.avi,x\nb.mp4,x\n", "line 3: the id 'x' is that of line 2 too"),
        ("file\na.avi\na.avi\n", "line 3: the id 'a' is that of line 2 too"),
        ("file\n", "lists no videos"),
        ("", "no column file"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_with_its_line(videos: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scan(write_list(videos, text))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"file": ', "line 2: not JSON"),
        ('["a.avi"]', "line 2: .* is not an object"),
        ('{"label": "x"}', "line 2: no column file"),
        ('{"file": ["a.avi"]}', "line 2: file is .*neither text nor a number"),
        ('{"file": "a.avi", "start": true}', "line 2: start is True"),
        ('{"file": "a.avi", "strat": 1}', "line 2: unknown column 'strat'; did you mean 'start'"),
    ],
)  # fmt: skip
def test_a_mistake_in_jsonl_is_reported_with_its_line(videos: Path, line: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scan(write_list(videos, f'{{"file": "b.mp4"}}\n{line}\n', "list.jsonl"))


def test_all_mistakes_are_reported_at_once(videos: Path) -> None:
    path = write_list(videos, "file,start,end\nnone.avi,,\na.avi,3,1\nb.mp4,9,10\n")
    with pytest.raises(ValueError, match="3 mistakes, nothing was started") as caught:
        scan(path)
    assert [f"line {line}:" in text for line, text in enumerate(str(caught.value).splitlines()[1:], start=2)] == [
        True,
        True,
        True,
    ]
    with pytest.raises(FileNotFoundError, match=r"line 2: .*none\.avi does not exist"):
        scan(write_list(videos, "file\nnone.avi\n"))
    with pytest.raises(ValueError, match=r"30 mistakes(.|\n)*and 10 more"):
        scan(write_list(videos, "file,start\n" + 30 * "a.avi,x\n"))
    with pytest.raises(FileNotFoundError):
        scan(videos / "nowhere.csv")
    with pytest.raises(ValueError, match="must end in .csv or .jsonl"):
        scan(videos / "a.avi")
    with pytest.raises(ValueError, match="leave --splits out"):
        scan_collection("list", path, splits=videos)
    with pytest.raises(ValueError, match="leave --source-pattern out"):
        scan_collection("list", path, source_pattern="(a)")


def test_overlapping_cuts_must_have_one_subset_and_one_source(videos: Path) -> None:
    header = "file,start,end,subset,source\n"
    assert len(scan(write_list(videos, f"{header}a.avi,0,2,train,\na.avi,2,3,test,s\n")).videos) == 2
    with pytest.raises(ValueError, match=r"line 3: it has frames of .* with line 2, but the subset test, not train"):
        scan(write_list(videos, f"{header}a.avi,0,2,train,\na.avi,1.9,3,test,\n"))
    with pytest.raises(ValueError, match=r"line 3: .*in common with line 2, but the source 's', not 'a'"):
        scan(write_list(videos, f"{header}a.avi,,,train,\na.avi,1.9,3,train,s\n"))
    with pytest.raises(ValueError, match=r"line 4: .*in common with line 3, but the subset test"):
        scan(write_list(videos, f"{header}a.avi,0,2,train,\na.avi,1,3,train,\na.avi,2.5,4,test,\n"))
    (videos / "link.avi").symlink_to(videos / "a.avi")
    with pytest.raises(ValueError, match=r"but the source 'link', not 'a'"):
        scan(write_list(videos, "file,start,end\na.avi,0,2\nlink.avi,1,3\n"))


def test_a_cut_that_ends_after_the_video_is_a_warning(videos: Path) -> None:
    (warning,) = scan(write_list(videos, "file,start,end\na.avi,3,5\nb.mp4,0,1\n")).warnings
    assert warning == "1 rows end after their video does, and are cut at its end, for example line 2"


def frames_between(path: Path, start: float, end: float) -> list[np.ndarray]:
    """Decode all frames, and keep those whose time since the first one is in the interval: slow and obvious."""
    with av.open(str(path)) as file:
        frames = [(frame.pts or 0, frame.to_ndarray(format="rgb24")) for frame in file.decode(video=0)]
        tick = file.streams.video[0].time_base
    assert tick is not None
    return [pixels for pts, pixels in frames if start <= float((pts - frames[0][0]) * tick) < end]


def test_a_list_becomes_a_store_whose_cuts_are_the_frames_between_their_times(videos: Path, tmp_path: Path) -> None:
    rows = "a.avi,0.4,0.8,early,x\na.avi,2.52,3,,y\nb.mp4,,,,x\n"
    path, out = write_list(videos, f"file,start,end,id,label\n{rows}"), tmp_path / "clips"
    result = preprocess(path, out, layout="list")
    assert result.returncode == exit_codes.SUCCESS, result.stderr
    store = ClipStore.open(out)
    records = {record.video_id: record for record in store.records}
    assert {name: (one.num_frames, one.num_flow, one.source) for name, one in records.items()} == {
        "early": (10, 9, "a"),
        "a_2.52-3": (12, 11, "a"),
        "b": (25, 24, "b"),
    }
    for name, start, end in (("early", 0.4, 0.8), ("a_2.52-3", 2.52, 3)):
        assert (records[name].cut_start, records[name].cut_end) == (start, end)
        expected = np.stack(frames_between(videos / "a.avi", start, end)).transpose(0, 3, 1, 2)
        stored = store.read(records[name], "rgb", range(records[name].num_frames)).numpy()
        errors = [np.abs(stored.astype(float) - np.roll(expected, shift, axis=0)).mean() for shift in (0, 1, -1)]
        assert errors[0] < 4 and errors[0] < min(errors[1:]), "but for the loss of coding"
    assert check_store(store) == []
    contents = VideoTable.from_records(list(store.records), ["train"] * 3).contents
    assert contents is not None and len(set(contents.tolist())) == 3, "two cuts of a file are not the same video"


def test_the_same_command_converts_only_what_is_cut_otherwise_now(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "clips"
    path = write_list(videos, "file,start,end,id\na.avi,0,1,x\na.avi,1,2,y\n")
    assert preprocess(path, out, *RGB, layout="list").returncode == exit_codes.SUCCESS
    before, again = hash_tree(out), preprocess(path, out, *RGB, layout="list")
    assert again.returncode == exit_codes.SUCCESS and hash_tree(out) == before
    assert "0 videos converted, 2 already done" in " ".join(again.stderr.split())
    write_list(videos, "file,start,end,id\na.avi,0,1,x\na.avi,1,2.2,y\n")
    result = preprocess(path, out, *RGB, layout="list")
    text = " ".join(result.stderr.split())
    assert "1 videos converted, 1 already done" in text and "from 1 s to 2.2 s was changed" in text, text
    assert {record.video_id: record.num_frames for record in ClipStore.open(out).records} == {"x": 25, "y": 30}
    assert check_store(ClipStore.open(out)) == []


def test_overlapping_cuts_of_copies_are_reported_after_the_conversion(videos: Path, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.avi").write_bytes((videos / "a.avi").read_bytes())
    rows = "a.avi,0,0.4,train\na.avi,0.4,0.8,train\nb.avi,0.7,1,test\n"
    path, out = write_list(tmp_path, f"file,start,end,subset\n{rows}"), tmp_path / "clips"
    result = preprocess(path, out, *RGB, layout="list")
    (fault,) = check_store(ClipStore.open(out))
    assert fault == (
        "'a_0.4-0.8' and 'b_0.7-1' are overlapping cuts of the same file, in the subsets test and train of split 1"
    )
    assert result.returncode == exit_codes.SUCCESS and fault in " ".join(result.stderr.split())


def test_mistakes_are_exit_code_2_and_nothing_is_written(videos: Path, tmp_path: Path) -> None:
    path = write_list(videos, "file,start\na.avi,7\nnone.avi,\n")
    result = preprocess(path, tmp_path / "clips", layout="list")
    text = " ".join(result.stderr.split())
    assert result.returncode == exit_codes.USAGE_ERROR and "Traceback" not in text
    assert "2 mistakes" in text and "line 2:" in text and "line 3:" in text
    assert not (tmp_path / "clips").exists()
    write_list(videos, "file,start\na.avi,1\n")
    result = preprocess(path, tmp_path / "clips", "--decoder", "decord", layout="list")
    assert result.returncode == exit_codes.USAGE_ERROR and not (tmp_path / "clips").exists()
