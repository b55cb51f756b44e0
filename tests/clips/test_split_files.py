"""Split files for formats without splits: ours, UCF-101's, CoCLR's and mmaction's, named in the address."""

from pathlib import Path

import pytest

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.records import write_split
from covid_cmsf.clips.split_files import read_split_files
from tests.factories import encode_jpeg, moving_square, write_lmdb

IDS = ["Archery/v_Archery_g01_c01", "Archery/v_Archery_g08_c01", "YoYo/v_YoYo_g01_c01"]
EXPECTED = {IDS[0]: "test", IDS[1]: "train", IDS[2]: "test"}
LISTS = {
    "UCF-101": {
        "trainlist01.txt": "Archery/v_Archery_g08_c01.avi 1\r\nNot/v_there_g01_c01.avi 2\r\n",
        "testlist01.txt": "Archery/v_Archery_g01_c01.avi\r\nYoYo/v_YoYo_g01_c01.avi\r\n",
        "classInd.txt": "1 Archery\r\n2 YoYo\r\n",
    },
    "CoCLR": {
        "train_split01.csv": "/some/disk/frame/Archery/v_Archery_g08_c01,164\n",
        "test_split01.csv": "/some/disk/frame/Archery/v_Archery_g01_c01,12\n/x/YoYo/v_YoYo_g01_c01/,5\n",
    },
    "mmaction": {
        "ucf101_train_split_1_rawframes.txt": "Archery/v_Archery_g08_c01 164 0\n",
        "ucf101_test_split_1_rawframes.txt": "Archery/v_Archery_g01_c01 12 0\nYoYo/v_YoYo_g01_c01 5 1\n",
    },
}


@pytest.mark.parametrize("project", LISTS)
def test_lists_of_other_projects_are_read(tmp_path: Path, project: str, caplog: pytest.LogCaptureFixture) -> None:
    for name, text in LISTS[project].items():
        (tmp_path / name).write_text(text, newline="")
    assert read_split_files(tmp_path, IDS) == {"1": EXPECTED}


def test_our_own_table_is_read_as_a_file_and_in_a_folder(tmp_path: Path) -> None:
    write_split(tmp_path / "1.csv", EXPECTED)
    write_split(tmp_path / "mine.csv", {IDS[0]: "train"})
    assert read_split_files(tmp_path / "1.csv", IDS) == {"1": EXPECTED}
    assert read_split_files(tmp_path, IDS) == {"1": EXPECTED, "mine": {IDS[0]: "train"}}


def test_a_video_in_two_lists_and_a_name_of_two_videos_are_no_silent_choice(tmp_path: Path) -> None:
    (tmp_path / "trainlist01.txt").write_text("x/a.avi\nx/b.avi\n")
    (tmp_path / "testlist01.txt").write_text("x/c.avi\n")
    assert read_split_files(tmp_path, ["x/a", "p/x/b", "q/x/b", "x/c"]) == {"1": {"x/a": "train", "x/c": "test"}}
    (tmp_path / "testlist01.txt").write_text("x/a.avi\n")
    with pytest.raises(ValueError, match="split 1: 'x/a' is listed twice, in 'test' and in 'train'"):
        read_split_files(tmp_path, ["x/a", "x/b"])


def test_what_is_no_split_is_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no split file or folder"):
        read_split_files(tmp_path / "nothing", IDS)
    (tmp_path / "notes.txt").write_text("hello\n")
    with pytest.raises(ValueError, match="has no split: expected columns video_id and split"):
        read_split_files(tmp_path, IDS)
    (tmp_path / "testlist01.txt").write_text("Cat/v_Cat_g01_c01.avi\n")
    with pytest.raises(ValueError, match="none of the 1 videos listed.*another data set"):
        read_split_files(tmp_path, IDS)
    write_split(tmp_path / "1.csv", {"../../x": "train"})
    with pytest.raises(ValueError, match="a video id is a relative path"):
        read_split_files(tmp_path / "1.csv", IDS)


def test_an_address_names_the_splits_of_an_lmdb(tmp_path: Path) -> None:
    path, splits = tmp_path / "ucf101_frame.lmdb", tmp_path / "1.csv"
    write_lmdb(path, {name: [encode_jpeg(frame) for frame in moving_square(2)] for name in IDS})
    write_split(splits, EXPECTED)
    clips = open_clips(f"{path}?splits={splits}")
    assert [record.video_id for record in clips.select("1", "train")] == [IDS[1]]
    assert {record.source for record in clips.records} == {"v_Archery_g01", "v_Archery_g08", "v_YoYo_g01"}
    with pytest.raises(ValueError, match=r"no split '1'; these clips have none; name a file with PATH\?splits=FILE"):
        open_clips(path).select("1", "train")
    with pytest.raises(ValueError, match="unknown option 'split'; choose from splits, flow"):
        open_clips(f"{path}?split=1")
    with pytest.raises(ValueError, match="not of the form"):
        open_clips(f"{path}?splits")


def test_an_address_names_splits_and_bound_of_jpeg_folders(tmp_path: Path) -> None:
    for name in IDS:
        folder = tmp_path / "frames" / name
        folder.mkdir(parents=True)
        (folder / "img_00001.jpg").write_bytes(encode_jpeg(moving_square(1)[0]))
    write_split(tmp_path / "1.csv", EXPECTED)
    clips = open_clips(f"{tmp_path / 'frames'}?splits={tmp_path / '1.csv'}&bound=15")
    assert len(clips.select("1", "test")) == 2 and clips.flow_bound == 15
    assert clips.records[0].source == "v_Archery_g01"
    for bad in ("many", "-1", "nan"):
        with pytest.raises(ValueError, match=f"bound = '{bad}'; it must be a number of pixels above 0"):
            open_clips(f"{tmp_path / 'frames'}?bound={bad}")


def test_a_store_takes_no_options(finished_store: Path) -> None:
    with pytest.raises(ValueError, match="a clip store has its own splits and takes no options"):
        open_clips(f"{finished_store}?splits=x.csv")
