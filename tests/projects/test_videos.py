"""Which videos a project has: labels from folders and from a CSV file, lengths, and what is refused at once."""

from pathlib import Path

import pytest

from covid_cmsf.projects.state import Project, State, check_place
from covid_cmsf.projects.videos import check_count, probe_footage, scan_videos
from tests.factories import moving_square, write_video


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    for number, name in enumerate(("cats/a.mp4", "cats/b.mp4", "dogs/a.avi", "dogs/sub/c.mp4")):
        write_video(root / name, moving_square(6 + 2 * number, seed=number))
    return root


def test_by_default_there_are_no_labels(folder: Path) -> None:
    found = scan_videos(folder)
    assert [video.video_id for video in found.videos] == ["cats/a", "cats/b", "dogs/a", "dogs/sub/c"]
    assert found.labels == {} and {video.label for video in found.videos} == {-1}
    assert set(found.collection.splits["1"].values()) == {"train"}


def test_class_folders_are_labels_beside_the_videos_and_not_in_them(folder: Path) -> None:
    found = scan_videos(folder, layout="folder")
    assert found.labels == {"cats/a": "cats", "cats/b": "cats", "dogs/a": "dogs", "dogs/sub/c": "dogs"}
    assert {(video.label, video.class_name) for video in found.videos} == {(-1, "")}
    with pytest.raises(ValueError, match="unknown layout 'ucf101'; choose from flat, folder"):
        scan_videos(folder, layout="ucf101")
    with pytest.raises(ValueError, match="a is in no class folder"):
        scan_videos(folder / "cats", layout="folder")


def test_a_table_has_labels_for_some_and_names_sources(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("file,label,source\ncats/a.mp4,tabby,tape1\ndogs/sub/c,terrier,\ncats/b.mp4,,tape1\n")
    found = scan_videos(folder, labels=table)
    assert found.labels == {"cats/a": "tabby", "dogs/sub/c": "terrier"}
    assert [video.source for video in found.videos] == ["tape1", "tape1", "dogs/a", "dogs/sub/c"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name,label\na,b\n", "the columns are name, label; expected file,label"),
        ("file,label\ncats/z.mp4,x\n", "lists 1 files that are not in .*'cats/z.mp4'"),
        ("file,label\ncats/a.mp4,x\ncats/a.mp4,y\n", "row 3: 'cats/a.mp4' is listed twice"),
        ("file,label\ncats/a.mp4\n", "row 2"),
    ],
)
def test_a_wrong_table_is_refused(folder: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "labels.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        scan_videos(folder, labels=tmp_path / "labels.csv")


def test_lengths_are_those_of_the_headers(folder: Path) -> None:
    footage = probe_footage(scan_videos(folder).videos, short_edge=24)
    assert (footage.num_videos, footage.median_frames, footage.fps) == (4, 9, 25.0)
    assert footage.frame_bytes == 3 * 24 * 32


def test_few_videos_are_refused_with_what_is_possible_instead(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"has 4 video files, .* at least 16 .*`covid-cmsf search index .* --weights"):
        check_count(4, folder, what="video files")


def test_a_project_is_new_or_its_own_and_never_among_the_videos(folder: Path, tmp_path: Path) -> None:
    check_place(tmp_path / "new", folder)
    with pytest.raises(FileNotFoundError, match="there is no folder .* and no list"):
        check_place(tmp_path / "new", tmp_path / "none")
    for inside in (folder, folder / "project"):
        with pytest.raises(ValueError, match="its own clips would be taken for videos"):
            check_place(inside, folder)
    (tmp_path / "other").mkdir()
    check_place(tmp_path / "other", folder)
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(FileExistsError, match=r"has other files \(thesis.txt\) and is no project"):
        check_place(tmp_path / "other", folder)


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    project = Project(tmp_path)
    state = State(videos="/videos", short_edge=60, labels="/labels.csv", generation=2)
    assert project.write(state) == project.read() == state
    (tmp_path / "project.json").write_text('{"format": 9}')
    with pytest.raises(ValueError, match="has format 9; this version reads format 1"):
        project.read()
    (tmp_path / "project.json").write_text("{")
    with pytest.raises(ValueError, match=r"project.json is damaged"):
        project.read()


def test_a_list_has_cuts_and_its_labels_stay_beside_the_videos(folder: Path) -> None:
    table = folder / "scenes.csv"
    table.write_text("file,start,end,label\ncats/a.mp4,0,0.12,cat\ndogs/sub/c.mp4,0.2,,\n")
    try:
        check_place(folder.parent / "project-of-a-list", table)
        found = scan_videos(table)
        assert [(v.video_id, v.label, v.class_name, v.cut_end) for v in found.videos] == [
            ("cats/a_0-0.12", -1, "", 0.12),
            ("dogs/sub/c_0.2-end", -1, "", 0.0),
        ]
        assert found.labels == {"cats/a_0-0.12": "cat"}
        assert probe_footage(found.videos[:1], short_edge=24).median_frames == 3
        assert probe_footage(found.videos[1:], short_edge=24).median_frames == 7
        with pytest.raises(ValueError, match="leave these out"):
            scan_videos(table, layout="folder")
        table.write_text("file,subset\ncats/a.mp4,train\ncats/b.mp4,test\n")
        with pytest.raises(ValueError, match=r"keeps 1 videos for test, for example 'cats/b'; `learn` trains on all"):
            scan_videos(table)
    finally:
        table.unlink()
