"""Records as columns: they read as a list of records does, and worker processes share them."""

import pickle
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest
import torch.multiprocessing

from covid_cmsf.clips.columns import ColumnTable
from covid_cmsf.clips.cuts import describe_content
from covid_cmsf.clips.records import ClipRecord, get_column, read_manifest, take_records, write_manifest, write_split
from covid_cmsf.clips.store import SplitFiles
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.views.dataset import ViewDataset
from tests.views.test_dataset import SyntheticClips
from tools.benchmarks.scale import make_store, measure_open

NAMES = ["plain", 'a "quoted", name', "[1]{2}*?", "caf\udce9", "日本", "", " space"]
RECORDS = [
    ClipRecord(f"c/{i:04d}{NAMES[i % 7]}", NAMES[i % 7], f"c{i % 3}", i % 3 - 1, i, i // 2, 25 / (i + 1), 4, 2, "ab")
    for i in range(700)
]


@pytest.fixture
def table(tmp_path: Path) -> ColumnTable[ClipRecord]:
    write_manifest(tmp_path / "manifest.csv", reversed(RECORDS))
    return read_manifest(tmp_path / "manifest.csv")


def test_a_table_reads_as_the_list_of_its_records(table: ColumnTable[ClipRecord]) -> None:
    assert len(table) == len(RECORDS) and list(table) == RECORDS
    assert table == RECORDS and table[:] == table and table != RECORDS[1:] and table != [*RECORDS[:-1], RECORDS[0]]
    assert [table[i] for i in (0, 5, 699, -1, -700)] == [RECORDS[i] for i in (0, 5, 699, -1, -700)]
    assert list(table[3:600:7]) == RECORDS[3:600:7] and list(reversed(table)) == RECORDS[::-1]
    with pytest.raises(IndexError):
        table[700]
    for name in ("video_id", "fps", "label"):
        assert get_column(table, name) == get_column(RECORDS, name)
    assert list(take_records(table[100:], [0, 3, 3])) == take_records(RECORDS[100:], [0, 3, 3])


def test_a_table_of_videos_is_made_of_columns_as_of_records(tmp_path: Path) -> None:
    hashes, cuts = ("", "aa", "bb"), ((0.0, 0.0), (1.5, 0.0), (0.0, 2.5), (1.5, 2.5))
    records = [
        replace(one, source_sha256=hashes[i % 3], cut_start=cuts[i % 4][0], cut_end=cuts[i % 4][1])
        for i, one in enumerate(RECORDS[:40])
    ]
    write_manifest(tmp_path / "manifest.csv", records)
    subsets = ["train", "test"] * 20
    videos = VideoTable.from_records(read_manifest(tmp_path / "manifest.csv"), subsets)
    assert videos.ids == tuple(one.video_id for one in records) and videos.subsets == tuple(subsets)
    assert videos.sources == tuple(one.source or one.video_id for one in records)
    assert videos.labels.tolist() == [one.label for one in records] and videos.class_names == ("c1", "c2")
    assert videos.contents is not None
    texts = [describe_content(one) for one in records]
    codes = dict(zip(texts, videos.contents.tolist(), strict=True))
    assert [codes[text] for text in texts] == videos.contents.tolist()
    assert codes[""] == 0 and len(set(codes.values())) == len(codes) == 9


def test_equal_ids_are_found_in_any_order(tmp_path: Path) -> None:
    write_manifest(tmp_path / "m.csv", RECORDS)
    lines = (tmp_path / "m.csv").read_bytes().split(b"\n")
    (tmp_path / "unsorted.csv").write_bytes(b"\n".join([lines[0], lines[8], lines[1], b""]))
    assert list(read_manifest(tmp_path / "unsorted.csv")) == [RECORDS[7], RECORDS[0]]
    (tmp_path / "twice.csv").write_bytes(b"\n".join([lines[0], lines[8], lines[1], lines[8], b""]))
    with pytest.raises(ValueError, match="two rows have video_id"):
        read_manifest(tmp_path / "twice.csv")


def _send_back(table: "ColumnTable[ClipRecord]", index: int, pipe: Connection) -> None:
    pipe.send((len(table), table[index]))


def test_a_worker_process_maps_the_records_and_gets_no_copy(table: ColumnTable[ClipRecord]) -> None:
    copied = len(pickle.dumps(list(table)))
    assert len(bytes(ForkingPickler.dumps(table))) < copied / 5
    context = torch.multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    worker = context.Process(target=_send_back, args=(table[10:], 3, theirs))
    worker.start()
    theirs.close()
    assert ours.recv() == (690, RECORDS[13])
    worker.join()
    assert list(table) == RECORDS, "the records of this process are still there"


def test_a_plain_pickle_has_the_content(table: ColumnTable[ClipRecord]) -> None:
    assert list(pickle.loads(pickle.dumps(table))) == RECORDS


def test_splits_are_read_when_used_and_not_sent_to_workers(tmp_path: Path) -> None:
    write_split(tmp_path / "1.csv", {record.video_id: "train" for record in RECORDS})
    (tmp_path / "2.csv").write_text("not a split")
    splits = SplitFiles(tmp_path)
    assert list(splits) == ["1", "2"] and "2" in splits and len(splits) == 2
    assert splits["1"] == {record.video_id: "train" for record in RECORDS}
    with pytest.raises(ValueError, match=r"2\.csv: columns are"):
        splits["2"]
    again = pickle.loads(pickle.dumps(splits))
    assert len(pickle.dumps(splits)) < 500 and again["1"] == splits["1"]


def test_sources_are_numbered_by_their_sorted_names() -> None:
    clips = SyntheticClips(6)
    clips.records = [replace(one, source=name) for one, name in zip(clips.records, "bcabca", strict=True)]
    assert ViewDataset(clips, modalities=("rgb",))._sources.tolist() == [1, 2, 0, 1, 2, 0]


def test_the_benchmark_of_scale_measures_a_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_store(tmp_path / "store", 500)
    measure_open(str(tmp_path / "store"))
    assert '"open_s"' in capsys.readouterr().out
