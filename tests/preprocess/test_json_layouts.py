"""Something-Something v2 and Diving48: JSON lists, missing videos, and wrong lists; Kinetics with files."""

import json
from pathlib import Path

import pytest

from covid_cmsf.clips import ClipStore
from preprocess.layouts import scan_collection
from tests.factories import moving_square, write_video
from tests.preprocess.commands import preprocess

HOLD, PUSH = "Holding [something] next to [something]", "Pushing [something]"
RGB = ("--modalities", "rgb")


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def make_ssv2(root: Path, front: str = "something-something-v2-") -> tuple[Path, Path]:
    """Return the folders of two videos and of lists that name three, one of them without a label."""
    for number, name in enumerate(("78687", "1420", "9")):
        write_video(root / "videos" / f"{name}.webm", moving_square(4, seed=number), codec="libvpx", fps=12)
    (root / "videos" / "9.webm").unlink()
    lists = root / "lists"
    rows = [{"id": "78687", "label": "holding a potato", "template": HOLD, "placeholders": ["a potato"]}]
    write_json(lists / f"{front}train.json", [*rows, {"id": "9", "template": PUSH}])
    write_json(lists / f"{front}test.json", [{"id": "1420"}])
    write_json(lists / f"{front}labels.json", {"Pushing something": "1", "Holding something next to something": "0"})
    return root / "videos", lists


@pytest.mark.parametrize("front", ["something-something-v2-", ""])
def test_ssv2_has_the_templates_as_classes_and_counts_missing_videos(tmp_path: Path, front: str) -> None:
    videos, lists = make_ssv2(tmp_path, front)
    collection = scan_collection("ssv2", videos, splits=lists)
    found = [(v.video_id, v.class_name, v.label, v.source) for v in collection.videos]
    assert found == [("1420", "", -1, "1420"), ("78687", "Holding something next to something", 0, "78687")]
    assert collection.splits == {"1": {"78687": "train", "1420": "test"}}
    assert collection.warnings == [f"1 of the 3 videos listed in {lists} are not on disk"]


def test_ssv2_is_converted_with_a_warning_about_what_is_missing(tmp_path: Path) -> None:
    videos, lists = make_ssv2(tmp_path)
    done = preprocess(videos, tmp_path / "clips", "--splits", str(lists), *RGB, layout="ssv2")
    assert done.returncode == 0 and "1 of the 3 videos" in " ".join(done.stderr.split()), done.stderr
    assert [(r.video_id, r.num_frames) for r in ClipStore.open(tmp_path / "clips").records] == [
        ("1420", 4),
        ("78687", 4),
    ]


@pytest.mark.parametrize("layout", ["ssv2", "diving48"])
def test_two_files_of_one_name_are_refused(tmp_path: Path, layout: str) -> None:
    videos, lists = make_ssv2(tmp_path)
    if layout == "diving48":
        write_json(tmp_path / "dives" / "Diving48_train.json", [{"vid_name": "1420", "label": 0}])
        lists = tmp_path / "dives"
    (videos / "copy").mkdir()
    (videos / "1420.webm").rename(videos / "copy" / "78687.webm")
    with pytest.raises(ValueError, match="have the same name, by which the list finds its videos"):
        scan_collection(layout, videos, splits=lists)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x-train.json", "[{", "x-train.json is not JSON"),
        ("x-train.json", "{}", "is not a list of objects with id"),
        ("x-train.json", '[{"template": "x"}]', r"entry 1 is .*it needs id"),
        ("x-train.json", '[{"id": "1", "template": "Odd"}, {"id": "1", "template": "Odd"}]', "'1' is listed twice"),
        ("x-train.json", '[{"id": "77"}]', "no id of .* has a file"),
        ("notes.json", "[]", "no list such as train.json"),
        ("labels.json", '["a"]', "no list such as train.json"),
    ],
)
def test_ssv2_lists_that_are_wrong_are_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / "v").mkdir()
    (tmp_path / "v" / "1.webm").touch()
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        scan_collection("ssv2", tmp_path / "v", splits=tmp_path / "lists")


def test_ssv2_refuses_a_class_that_labels_json_does_not_have(tmp_path: Path) -> None:
    videos, lists = make_ssv2(tmp_path)
    write_json(lists / "something-something-v2-labels.json", {"Pushing something": "0"})
    with pytest.raises(ValueError, match="has no class 'Holding something next to something'"):
        scan_collection("ssv2", videos, splits=lists)
    write_json(lists / "something-something-v2-labels.json", ["Pushing something"])
    with pytest.raises(ValueError, match="expected an object like"):
        scan_collection("ssv2", videos, splits=lists)


def make_diving48(root: Path) -> tuple[Path, Path]:
    for number, name in enumerate(("meet_a_00001", "meet_a_00002", "meet_b_00001")):
        write_video(root / "rgb" / f"{name}.mp4", moving_square(4, seed=number), codec="libx264")
    row = {"start_frame": 0, "end_frame": 4}
    train = [{"vid_name": "meet_a_00001", "label": 1, **row}, {"vid_name": "gone_00001", "label": 0, **row}]
    write_json(root / "lists" / "Diving48_V2_train.json", train)
    write_json(root / "lists" / "Diving48_V2_test.json", [{"vid_name": "meet_b_00001", "label": 0, **row}])
    write_json(root / "lists" / "Diving48_vocab.json", [["Back", "15som"], ["Inward", "25som"]])
    return root / "rgb", root / "lists"


def test_diving48_has_competitions_as_sources_and_dives_as_classes(tmp_path: Path) -> None:
    videos, lists = make_diving48(tmp_path)
    collection = scan_collection("diving48", videos, splits=lists)
    found = [(v.video_id, v.class_name, v.label, v.source) for v in collection.videos]
    assert found == [("meet_a_00001", "Inward 25som", 1, "meet_a"), ("meet_b_00001", "Back 15som", 0, "meet_b")]
    assert collection.splits == {"1": {"meet_a_00001": "train", "meet_b_00001": "test"}}
    assert collection.warnings == [f"1 of the 3 videos listed in {lists} are not on disk"]
    done = preprocess(videos, tmp_path / "clips", "--splits", str(lists), *RGB, layout="diving48")
    assert done.returncode == 0 and len(ClipStore.open(tmp_path / "clips").records) == 2, done.stderr


def test_diving48_warns_of_competitions_in_both_subsets(tmp_path: Path) -> None:
    videos, lists = make_diving48(tmp_path)
    write_json(lists / "Diving48_V2_test.json", [{"vid_name": "meet_a_00002", "label": 0}])
    assert "1 competitions in both" in scan_collection("diving48", videos, splits=lists).warnings[1]
    write_json(lists / "Diving48_test.json", [])
    with pytest.raises(ValueError, match="several versions of a list"):
        scan_collection("diving48", videos, splits=lists)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"vid_name": "meet_a_00001", "label": 2}, "the vocabulary has 2 dives"),
        ({"vid_name": "meet_a_00001", "label": "1"}, "not a number from 0 on"),
        ({"vid_name": "meet_a_00001"}, "it needs vid_name, label"),
        ({"vid_name": "meet_b_00001", "label": 1}, "'meet_b_00001' is listed twice"),
    ],
)
def test_diving48_lists_that_are_wrong_are_named(tmp_path: Path, row: dict[str, object], message: str) -> None:
    videos, lists = make_diving48(tmp_path)
    write_json(lists / "Diving48_V2_train.json", [row])
    with pytest.raises(ValueError, match=message):
        scan_collection("diving48", videos, splits=lists)


def test_kinetics_is_converted_from_flat_files_and_class_folders(tmp_path: Path) -> None:
    write_video(tmp_path / "v" / "abc_000001_000011.mp4", moving_square(4, seed=1), codec="libx264")
    write_video(tmp_path / "v" / "air drumming" / "xyz_000000_000010.mp4", moving_square(4, seed=2), codec="libx264")
    rows = "abseiling,abc,1,11,train\nair drumming,xyz,0,10,val\nabseiling,gone,3,13,train\n"
    (tmp_path / "k.csv").write_text(f"label,youtube_id,time_start,time_end,split\n{rows}")
    done = preprocess(tmp_path / "v", tmp_path / "clips", "--splits", str(tmp_path / "k.csv"), *RGB, layout="kinetics")
    assert done.returncode == 0 and "1 of the 3 videos" in " ".join(done.stderr.split()), done.stderr
    assert [r.label for r in ClipStore.open(tmp_path / "clips").records] == [0, 1]
