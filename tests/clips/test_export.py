"""`clips export`: WebDataset's shards and Hugging Face folders, and both read back by `preprocess`."""

import json
import shutil
import tarfile
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.export import export_clips
from covid_cmsf.clips.records import clip_path, read_manifest, write_manifest, write_split
from preprocess.layouts import Collection, Video, scan_collection
from tests.preprocess.commands import hash_tree, preprocess

LAYOUTS = {"webdataset": "archive", "huggingface": "huggingface"}
SUBSETS = ["train", "train", "test", "val", "train"]  # of the first videos; the last one is in no subset
every_format = pytest.mark.parametrize("to", LAYOUTS)


@pytest.fixture
def store(finished_store: Path, tmp_path: Path) -> ClipStore:
    """Six videos; their labels do not follow the names' order, and one has none."""
    path = Path(shutil.copytree(finished_store, tmp_path / "clips"))
    records = read_manifest(path / "manifest.csv")
    swapped = [replace(r, label=1 - r.label, source=f"film {i // 2}") for i, r in enumerate(records)]
    swapped[0] = replace(swapped[0], label=-1, class_name="")
    write_manifest(path / "manifest.csv", swapped)
    write_split(path / "splits" / "1.csv", {r.video_id: s for r, s in zip(swapped, SUBSETS, strict=False)})
    return ClipStore.open(path)


def scan(folder: Path, to: str) -> Collection:
    return scan_collection(LAYOUTS[to], folder)


def read_bytes(video: Video) -> bytes:
    if video.member is None:
        return video.path.read_bytes()
    return video.path.read_bytes()[video.member.offset :][: video.member.num_bytes]


@every_format
def test_a_source_made_of_an_export_has_all_that_the_store_knew(store: ClipStore, tmp_path: Path, to: str) -> None:
    summary = export_clips(store, tmp_path / "out", to=to, shard_size=2)
    assert summary.subsets == {"train": 3, "val": 1, "test": 1} and summary.num_left_out == 1
    collection = scan(tmp_path / "out", to)
    found = {v.video_id: (v.source, v.class_name, v.label) for v in collection.videos}
    assert found == {r.video_id: (r.source, r.class_name, r.label) for r in store.records[:5]}
    assert {r.label for r in store.records} == {-1, 0, 1} and collection.warnings == []
    assert collection.splits == {"1": dict(store.splits["1"])}
    for video in collection.videos:
        assert read_bytes(video) == clip_path(store.path, "rgb", video.video_id).read_bytes()


@every_format
def test_the_same_store_gives_the_same_bytes(store: ClipStore, tmp_path: Path, to: str) -> None:
    for name in ("first", "second"):
        export_clips(store, tmp_path / name, to=to)
    first = hash_tree(tmp_path / "first")
    assert first == hash_tree(tmp_path / "second") and len(first) > 2


def test_a_shard_is_what_webdataset_reads(store: ClipStore, tmp_path: Path) -> None:
    summary = export_clips(store, tmp_path / "out", to="webdataset", shard_size=2)
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["test-000000.tar", "train-000000.tar", "train-000001.tar", "val-000000.tar"]
    assert summary.num_files == 4
    members: list[tarfile.TarInfo] = []
    for name in names:
        with tarfile.open(tmp_path / "out" / name) as shard:
            members += shard.getmembers()
    assert {(m.mtime, m.uid, m.gid, m.uname, m.mode) for m in members} == {(0, 0, 0, "", 0o644)}
    keys = [m.name.partition(".")[0] for m in members]
    assert len(set(keys)) == 5 and keys == sorted(keys, key=keys.index), "files of a sample are side by side"
    with tarfile.open(tmp_path / "out" / "val-000000.tar") as shard:
        file = shard.extractfile("val-000000000.json")
        assert file is not None
        values = json.load(file)
    record = store.records[3]
    assert values["id"] == record.video_id and values["num_frames"] == record.num_frames and values["subset"] == "val"


def test_a_folder_is_what_hugging_face_reads(store: ClipStore, tmp_path: Path) -> None:
    export_clips(store, tmp_path / "out", to="huggingface")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "test", "train", "validation"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "train" / "metadata.jsonl").read_text().splitlines()]
    assert len(rows) == 3 and all((tmp_path / "out" / "train" / row["file_name"]).is_file() for row in rows)
    assert len({tuple(row) for row in rows}) == 1, "every row has every column"
    header = yaml.safe_load((tmp_path / "out" / "README.md").read_text().split("---")[1])
    files = header["configs"][0]["data_files"]
    assert {one["split"]: one["path"] for one in files} == {
        name: f"{name}/**" for name in ("train", "validation", "test")
    }


def test_webdataset_itself_reads_the_shards(store: ClipStore, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="the extra dev is not installed")
    export_clips(store, tmp_path / "out", to="webdataset", shard_size=2)
    shards = sorted(map(str, (tmp_path / "out").glob("train-*.tar")))
    found = {}
    for sample in webdataset.WebDataset(shards, shardshuffle=False):
        values = json.loads(sample["json"])
        found[values["id"]] = sample["mp4"]
        assert ("cls" in sample) == (values["label_number"] is not None)
        assert int(sample.get("cls", -1)) == next(r.label for r in store.records if r.video_id == values["id"])
    names = [name for name, subset in store.splits["1"].items() if subset == "train"]
    assert found == {name: clip_path(store.path, "rgb", name).read_bytes() for name in names} and len(found) == 3


@pytest.mark.slow
@pytest.mark.parametrize("to", ["huggingface", "webdataset"])
def test_datasets_itself_reads_an_export(
    store: ClipStore, tmp_path: Path, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra dev is not installed")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    export_clips(store, tmp_path / "out", to=to)
    loaded = datasets.load_dataset(str(tmp_path / "out"), cache_dir=str(tmp_path / "cache"))
    assert {name: len(part) for name, part in loaded.items()} == {"train": 3, "validation": 1, "test": 1}
    labels = {record.video_id: record.label for record in store.records}
    for part in loaded.values():
        column = "video" if to == "huggingface" else "mp4"
        for row in part.cast_column(column, datasets.Video(decode=False)):
            values = row if to == "huggingface" else row["json"]
            video = row[column]["bytes"] or Path(row[column]["path"]).read_bytes()
            assert video == clip_path(store.path, "rgb", values["id"]).read_bytes()
            assert values["label_number"] == (labels[values["id"]] if labels[values["id"]] >= 0 else None)


def test_nothing_is_written_if_the_export_can_not_be_whole(
    store: ClipStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    for options, message in (
        ({"to": "parquet"}, "unknown format 'parquet'; choose from webdataset, huggingface"),
        ({"to": "webdataset", "split": "7"}, "no split '7'"),
    ):
        with pytest.raises(ValueError, match=message):
            export_clips(store, out, **options)  # type: ignore[arg-type]
    usage = namedtuple("usage", "free")
    with monkeypatch.context() as patch, pytest.raises(ValueError, match="needs .* free"):
        patch.setattr("shutil.disk_usage", lambda path: usage(10))
        export_clips(store, out, to="webdataset")
    damaged = clip_path(store.path, "rgb", store.records[0].video_id)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="SHA-256 is another one"):
        export_clips(store, out, to="webdataset")
    assert [path.name for path in tmp_path.iterdir()] == ["clips"]
    out.mkdir()
    (out / "mine.txt").write_text("x")
    with pytest.raises(FileExistsError, match="not empty"):
        export_clips(store, out, to="webdataset")


@pytest.mark.slow
@every_format
def test_preprocess_makes_a_store_of_an_export(store: ClipStore, tmp_path: Path, to: str) -> None:
    result = CliRunner().invoke(app, ["clips", "export", str(store.path), "--to", to, "-o", str(tmp_path / "out")])
    assert result.exit_code == 0 and "5 videos (3 train, 1 val, 1 test)" in result.output, result.output
    assert "1 videos were left out" in result.output
    done = preprocess(tmp_path / "out", tmp_path / "again", "--modalities", "rgb", layout=LAYOUTS[to])
    assert done.returncode == 0, done.stderr
    again = ClipStore.open(tmp_path / "again")
    keep = "video_id source class_name label num_frames fps width height".split()
    assert [[getattr(r, k) for k in keep] for r in again.records] == [
        [getattr(r, k) for k in keep] for r in store.records[:5]
    ]
    assert [r.source_sha256 for r in again.records] == [r.rgb_sha256 for r in store.records[:5]]
