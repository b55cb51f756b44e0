"""Folders as Hugging Face `datasets` has them: metadata beside or above the videos, or class folders."""

import json
from pathlib import Path

import pytest

from preprocess.layouts import Collection, scan_collection
from tests.preprocess.test_layouts import touch


def scan(root: Path, **options: object) -> Collection:
    return scan_collection("huggingface", root, **options)  # type: ignore[arg-type]


def write_rows(path: Path, *rows: dict[str, object]) -> None:
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")


def test_metadata_is_beside_the_videos_of_each_subset(tmp_path: Path) -> None:
    root = touch(tmp_path / "v", "train/a.mp4", "train/deep/b.mp4", "validation/c.mp4", "train/unlisted.mp4")
    write_rows(
        root / "train" / "metadata.jsonl",
        {"file_name": "a.mp4", "label": "y", "label_number": 0, "source": "s", "caption": "x"},
        {"file_name": "deep/b.mp4", "label": "x", "label_number": 1, "id": "X/b"},
    )
    (root / "validation" / "metadata.csv").write_text("file_name,label,label_number\nc.mp4,y,0\n")
    collection = scan(root)
    found = [(v.video_id, v.class_name, v.label, v.source) for v in collection.videos]
    assert found == [("X/b", "x", 1, "X/b"), ("a", "y", 0, "s"), ("c", "y", 0, "c")]
    assert collection.splits["1"] == {"a": "train", "X/b": "train", "c": "val"}
    assert collection.warnings == [
        f"1 videos below {root} are in no metadata, for example {root / 'train/unlisted.mp4'}"
    ]


def test_metadata_may_be_above_and_classes_may_be_numbers(tmp_path: Path) -> None:
    root = touch(tmp_path / "v", *[f"data/test/{number}.mp4" for number in range(11)])
    write_rows(root / "metadata.jsonl", *[{"file_name": f"data/test/{i}.mp4", "label": i} for i in range(11)])
    collection = scan(root)
    assert {v.class_name: v.label for v in collection.videos} == {str(i): i for i in range(11)}
    assert set(collection.splits["1"].values()) == {"test"}


def test_without_metadata_folders_are_classes(tmp_path: Path) -> None:
    root = touch(tmp_path / "v", "train/dog/a.mp4", "train/cat/b.mp4", "dev/cat/c.mp4")
    collection = scan(root)
    assert [(v.video_id, v.class_name) for v in collection.videos] == [
        ("cat/b", "cat"),
        ("cat/c", "cat"),
        ("dog/a", "dog"),
    ]
    assert collection.splits["1"] == {"dog/a": "train", "cat/b": "train", "cat/c": "val"}
    plain = scan(touch(tmp_path / "w", "dog/a.mp4", "cat/b.mp4"))
    assert set(plain.splits["1"].values()) == {"train"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"file_name": "../up.mp4"}', "line 1: '../up.mp4' leads out of the folder"),
        ('{"file_name": "/etc/x.mp4"}', "leads out of the folder"),
        ('{"file_name": "a.mp4"}\n{"label": "x"}', "line 2: no file_name"),
        ('{"file_name": "a.mp4", "label_number": -1}', "label_number is -1"),
        ('{"file_name": "a.mp4", "label_number": true}', "label_number is True"),
        ('{"file_name": "a.mp4", "label": {}}', "label is {}, neither"),
        ("[1]", "is not an object"),
        ("{", "line 1: not JSON"),
    ],
)  # fmt: skip
def test_a_mistake_in_metadata_is_named_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    root = touch(tmp_path / "v", "a.mp4")
    (root / "metadata.jsonl").write_text(text)
    with pytest.raises(ValueError, match=message):
        scan(root)
    (root / "metadata.jsonl").write_text('{"file_name": "none.mp4"}')
    with pytest.raises(FileNotFoundError, match=r"line 1: .*none\.mp4 does not exist"):
        scan(root)
