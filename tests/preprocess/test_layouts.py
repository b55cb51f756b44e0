"""Every layout: labels, sources, splits; odd names; clear messages when something is off."""

from collections import Counter
from pathlib import Path

import pytest

from preprocess.layouts import LAYOUTS, scan_collection
from preprocess.layouts.collection import find_videos, make_video_ids


def touch(root: Path, *names: str) -> Path:
    """Empty files: scanning looks at names only."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def ucf_names(*classes: str, groups: int = 25) -> list[str]:
    return [f"{name}/v_{name}_g{group:02d}_c01.avi" for name in classes for group in range(1, groups + 1)]


def test_ucf101_without_lists_has_the_official_splits(tmp_path: Path) -> None:
    root = touch(tmp_path, *ucf_names("HandstandPushups", "Hammering", "HammerThrow"))
    collection = scan_collection("ucf101", root)
    assert {v.class_name: v.label for v in collection.videos} == {
        "Hammering": 0,
        "HammerThrow": 1,
        "HandstandPushups": 2,
    }
    test_groups = [
        {v[-7:-4] for v, subset in split.items() if subset == "test"} for split in collection.splits.values()
    ]
    assert test_groups[0] == {f"g{g:02d}" for g in range(1, 8)}
    assert test_groups[2] == {f"g{g:02d}" for g in range(15, 22)}
    assert collection.videos[0].source == "v_HammerThrow_g01"


def test_ucf101_with_lists_follows_them(tmp_path: Path) -> None:
    root = touch(tmp_path / "videos", *ucf_names("A", "B", groups=3), "B/notes.txt")
    lists = tmp_path / "splits"
    lists.mkdir()
    (lists / "classInd.txt").write_bytes(b"1 B\r\n2 A\r\n")
    (lists / "trainlist01.txt").write_bytes(b"A/v_A_g01_c01.avi 2\r\nB/v_B_g02_c01.avi 1\r\nB/v_B_g09_c01.avi 1\r\n")
    (lists / "testlist01.txt").write_bytes(b"B/v_B_g01_c01.avi\r\n")
    collection = scan_collection("ucf101", root, splits=lists)
    assert collection.splits == {"1": {"A/v_A_g01_c01": "train", "B/v_B_g02_c01": "train", "B/v_B_g01_c01": "test"}}
    assert {v.class_name: v.label for v in collection.videos} == {"B": 0, "A": 1}
    assert collection.warnings == [f"1 of the 4 videos listed in {lists} are not on disk"]
    (lists / "classInd.txt").unlink()
    collection = scan_collection("ucf101", root, splits=lists)
    assert {v.class_name: v.label for v in collection.videos} == {"A": 0, "B": 1}
    assert "no classInd.txt" in collection.warnings[1], "other labels than the lists' own are never silent"


def test_chosen_classes_are_labeled_from_0_and_others_are_in_no_split(tmp_path: Path) -> None:
    root = touch(tmp_path, *ucf_names("Archery", "Diving", "Surfing", "Swing"))
    whole, some = scan_collection("ucf101", root), scan_collection("ucf101", root, classes=["Surfing", " Diving", ""])
    assert {v.class_name: v.label for v in some.videos} == {"Diving": 0, "Surfing": 1}
    for name, split in some.splits.items():
        kept = {key: subset for key, subset in whole.splits[name].items() if key.startswith(("Diving/", "Surfing/"))}
        assert split == kept and len(split) == 50
    with pytest.raises(ValueError, match="no video is of class 'diving'; did you mean 'Diving'"):
        scan_collection("ucf101", root, classes=["diving", "Swing"])
    with pytest.raises(ValueError, match="no video is of class 'Yoyo'; choose from Archery, Diving, Surfing, Swing"):
        scan_collection("ucf101", root, classes=["Yoyo"])
    with pytest.raises(ValueError, match="names no class"):
        scan_collection("ucf101", root, classes=[""])
    with pytest.raises(ValueError, match="no classes to choose from"):
        scan_collection("flat", root, classes=["Swing"])


@pytest.mark.real
def test_group_splits_equal_the_published_lists(real_videos: Path) -> None:
    made = scan_collection("ucf101", real_videos)
    listed = scan_collection("ucf101", real_videos, splits=real_videos.parent / "splits")
    assert made.splits == listed.splits and made.videos == listed.videos
    assert Counter(made.splits["1"].values()) == {"train": 108, "test": 42}


def test_hmdb51_keeps_names_with_brackets_and_odd_characters(tmp_path: Path) -> None:
    odd = "20060723sfjffbartsinger_[x]*?'\"!&_brush_hair_f_nm_np2_ba_med_0.avi"
    root = touch(tmp_path / "videos", f"brush_hair/{odd}", "brush_hair/b c_brush_hair_1.avi", "hug/x_hug_1.avi")
    lists = tmp_path / "splits"
    lists.mkdir()
    (lists / "brush_hair_test_split1.txt").write_text(f"{odd} 1 \nb c_brush_hair_1.avi 2 \n")
    (lists / "brush_hair_test_split2.txt").write_text(f"{odd} 0 \n")
    (lists / "hug_test_split1.txt").write_text("x_hug_1.avi 1\n")
    (lists / "hug_test_split2.txt").write_text("x_hug_1.avi 2\n")
    collection = scan_collection("hmdb51", root, splits=lists)
    assert collection.splits["1"][f"brush_hair/{odd[:-4]}"] == "train"
    assert collection.splits["1"]["brush_hair/b c_brush_hair_1"] == "test"
    assert collection.splits["2"] == {"hug/x_hug_1": "test"}
    assert {v.source for v in collection.videos} == {"20060723sfjffbartsinger_[x]*?'\"!&", "b c", "x"}


def test_kinetics_rows_find_their_files(tmp_path: Path) -> None:
    root = touch(tmp_path / "v", "train/abseiling/0wR5jVB-WPk_000417_000427.mp4", "val/air drumming/xyz.mkv")
    (tmp_path / "train.csv").write_text(
        "label,youtube_id,time_start,time_end,split\nabseiling,0wR5jVB-WPk,417,427,train\nabseiling,gone,1,11,train\n"
    )
    (tmp_path / "val.csv").write_text("label,youtube_id,time_start,time_end\nair drumming,xyz,0,10\n")
    lists = tmp_path / "lists"
    lists.mkdir()
    for name in ("train.csv", "val.csv"):
        (tmp_path / name).rename(lists / name)
    collection = scan_collection("kinetics", root, splits=lists)
    assert collection.splits["1"] == {
        "train/abseiling/0wR5jVB-WPk_000417_000427": "train",
        "val/air drumming/xyz": "val",
    }
    assert [(v.source, v.label) for v in collection.videos] == [("0wR5jVB-WPk", 0), ("xyz", 1)]
    assert "1 of the 3 videos" in collection.warnings[0]


def test_folder_splits_by_source_with_a_seed(tmp_path: Path) -> None:
    names = [f"{c}/movie{m}_{i}.mp4" for c in "ab" for m in range(8) for i in range(3)]
    root = touch(tmp_path, *names)
    first, again, other = (
        scan_collection("folder", root, seed=seed, source_pattern=r"(movie\d+)").splits["1"] for seed in (0, 0, 1)
    )
    assert first == again and first != other
    sources = {
        subset: {v.split("/")[1].split("_")[0] for v in first if first[v] == subset} for subset in ("train", "test")
    }
    assert not sources["train"] & sources["test"] and len(sources["test"]) == 2


def test_folder_without_a_pattern_tests_on_the_asked_share_of_every_class(tmp_path: Path) -> None:
    root = touch(tmp_path, *(f"{c}/{i}.mp4" for c in "abc" for i in range(8)), "lonely/1.mp4")
    split = scan_collection("folder", root, test_fraction=0.25).splits["1"]
    assert Counter((v[0], subset) for v, subset in split.items() if subset == "test") == {(c, "test"): 2 for c in "abc"}


def test_flat_takes_any_folder_and_has_no_labels(tmp_path: Path) -> None:
    root = touch(tmp_path, "x.mp4", "deep/er/y.avi", "deep/er/notes.txt", ".hidden/z.avi")
    collection = scan_collection("flat", root)
    assert [(v.video_id, v.label, v.class_name) for v in collection.videos] == [("deep/er/y", -1, ""), ("x", -1, "")]
    assert set(collection.splits["1"].values()) == {"train"}


def test_files_that_differ_in_their_ending_keep_it() -> None:
    paths = [Path("a/x.avi"), Path("a/x.mp4"), Path("a/y.mp4")]
    assert list(make_video_ids(paths).values()) == ["a/x.avi", "a/x.mp4", "a/y"]


def test_links_are_followed_and_loops_are_not(tmp_path: Path) -> None:
    touch(tmp_path / "real", "a.avi")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "loop").symlink_to(root)
    assert find_videos(root) == [Path("link/a.avi")]


def test_a_link_to_itself_does_not_stop_the_scan(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.mp4")
    (tmp_path / "a" / "self.avi").symlink_to(tmp_path / "a" / "self.avi")
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a" / "self")
    assert find_videos(tmp_path) == [Path("a/self.avi"), Path("a/x.mp4")]


def test_names_that_are_no_ids_are_escaped_and_stay_unique(tmp_path: Path) -> None:
    root = touch(tmp_path / "v", "a\tb/two\nlines.mp4", "a\tb/back\\slash.mp4")
    collection = scan_collection("folder", root, test_fraction=0)
    assert {video.video_id: video.path.name for video in collection.videos} == {
        "a%09b/back%5Cslash": "back\\slash.mp4",
        "a%09b/two%0Alines": "two\nlines.mp4",
    }
    assert {video.class_name for video in collection.videos} == {"a%09b"}
    assert set(collection.splits["1"]) == {video.video_id for video in collection.videos}
    touch(root, "a\tb/two%0Alines.mp4")
    with pytest.raises(ValueError, match="would both have the id 'a%09b/two%0Alines'; rename one of them"):
        scan_collection("folder", root)


def test_a_list_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    root = touch(tmp_path / "v", "x_000001_000002.mp4")
    (tmp_path / "train.csv").write_bytes(b"label,youtube_id,time_start,time_end\ncaf\xe9,x,1,2\n")
    with pytest.raises(ValueError, match=r"train\.csv, line 2: byte 0xe9 is not UTF-8 text"):
        scan_collection("kinetics", root, splits=tmp_path / "train.csv")


def test_wrong_use_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder of videos"):
        scan_collection("flat", tmp_path / "nothing")
    with pytest.raises(ValueError, match="no video files below"):
        scan_collection("flat", tmp_path)
    root = touch(tmp_path / "v", "a/x.mp4", "loose.mp4")
    with pytest.raises(ValueError, match=f"'ucf'; choose from {', '.join(LAYOUTS)}"):
        scan_collection("ucf", root)
    with pytest.raises(ValueError, match="no class folder; use the layout `flat`"):
        scan_collection("folder", root)
    with pytest.raises(ValueError, match="as the layout ucf101 needs"):
        scan_collection("ucf101", root)
    for layout in ("hmdb51", "kinetics"):
        with pytest.raises(ValueError, match="needs --splits"):
            scan_collection(layout, root)
    with pytest.raises(FileNotFoundError, match="no split lists"):
        scan_collection("ucf101", root, splits=tmp_path / "nowhere")
    with pytest.raises(ValueError, match="leave --splits out"):
        scan_collection("flat", root, splits=tmp_path)
    with pytest.raises(ValueError, match="not a regular expression"):
        scan_collection("flat", root, source_pattern="(")
    with pytest.raises(ValueError, match="matches nothing in"):
        scan_collection("flat", root, source_pattern=r"g\d\d")
