"""Videos in tar and zip archives: WebDataset's samples, packed folders, and archives that lie."""

import io
import json
import os
import random
import stat
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

from covid_cmsf import exit_codes
from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.decoders import choose_decoder
from preprocess.archives import MAX_TEXT, Member, copy_member, list_members, member_sha256, read_member
from preprocess.config import make_store_info
from preprocess.convert import StageError
from preprocess.estimate import estimate
from preprocess.layouts import Collection, default_layout, scan_collection
from preprocess.sources import local_source
from tests.factories import moving_square, write_video
from tests.preprocess.commands import hash_tree, preprocess

RGB = ("--modalities", "rgb")


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    """Write a tar archive with these members in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def write_zip(path: Path, members: dict[str, bytes]) -> Path:
    """Write a zip archive with these members in this order."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


WRITERS = {"tar": write_tar, "zip": write_zip}
every_kind = pytest.mark.parametrize("kind", WRITERS)


def scan(path: Path, **options: object) -> Collection:
    return scan_collection("archive", path, **options)  # type: ignore[arg-type]


def sample(key: str, number: int | None = None, **values: object) -> dict[str, bytes]:
    """Return the members of a WebDataset sample."""
    members = {f"{key}.mp4": key.encode(), f"{key}.json": json.dumps(values).encode()}
    return members | ({} if number is None else {f"{key}.cls": str(number).encode()})


@every_kind
def test_a_sample_has_what_its_json_and_cls_say(tmp_path: Path, kind: str) -> None:
    members = {
        **sample("0001", 1, label="Archery", source="film", subset="train", duration=[1, 2], caption="x"),
        **sample("0002", 0, label="Yoyo", id="Yoyo/v2", subset="test"),
        **sample("0003", subset="val", label=None),
        "notes.txt": b"",
    }
    collection = scan(WRITERS[kind](tmp_path / f"shard.{kind}", members))
    found = [(v.video_id, v.class_name, v.label, v.source) for v in collection.videos]
    assert found == [("0001", "Archery", 1, "film"), ("0003", "", -1, "0003"), ("Yoyo/v2", "Yoyo", 0, "Yoyo/v2")]
    assert collection.splits == {"1": {"0001": "train", "Yoyo/v2": "test", "0003": "val"}}


def test_files_beside_a_video_are_found_by_its_name_or_by_webdatasets_key(tmp_path: Path) -> None:
    members = {"a/1.rgb.mp4": b"", "a/1.cls": b"x", "a/2.b.mp4": b"", "a/2.b.json": b'{"label": 3}', "a/2.json": b"["}
    videos = scan(write_tar(tmp_path / "a.tar", members)).videos
    assert [(v.video_id, v.class_name) for v in videos] == [("a/1.rgb", "x"), ("a/2.b", "3")]


@every_kind
def test_a_packed_folder_is_what_the_folder_is(tmp_path: Path, kind: str) -> None:
    names = ["UCF/Archery/a.avi", "UCF/Archery/deep/b.avi", "UCF/Yoyo/c.avi", "UCF/Yoyo/d.avi"]
    junk = {"__MACOSX/UCF/Archery/._a.avi": b"", "UCF/.hidden/x.avi": b"", "UCF/readme.txt": b""}
    path = WRITERS[kind](tmp_path / f"x.{kind}", {**{f"./{name}": b"v" for name in names}, **junk})
    collection = scan(path, test_fraction=0.5, source_pattern="(Yoyo|[ab])")
    assert [v.video_id for v in collection.videos] == [name[:-4] for name in names]
    assert [(v.class_name, v.label) for v in collection.videos] == [("Archery", 0)] * 2 + [("Yoyo", 1)] * 2
    assert [v.source for v in collection.videos] == ["a", "b", "Yoyo", "Yoyo"]
    split = collection.splits["1"]
    assert split["UCF/Yoyo/c"] == split["UCF/Yoyo/d"] and set(split.values()) == {"train", "test"}
    assert set(scan(path).splits["1"].values()) == {"train"} and not collection.warnings
    assert "footage of its own" in scan(path, test_fraction=0.5).warnings[0]


def test_a_folder_of_shards_is_one_collection_of_numbered_classes(tmp_path: Path) -> None:
    for number in range(12):
        write_tar(tmp_path / "shards" / f"{number:03d}.tar", sample(f"{number:05d}", number))
    videos = scan(tmp_path / "shards").videos
    assert [(v.class_name, v.label) for v in videos] == [(str(i), i) for i in range(12)], "not 0, 1, 10, 11, 2"
    assert [default_layout(tmp_path / name) for name in ("x.tar", "x.ZIP", "x.tar.gz", "shards")] == [
        *3 * ["archive"],
        "folder",
    ]
    with pytest.raises(ValueError, match="preprocess --layout archive` reads its archives"):
        scan_collection("folder", tmp_path / "shards")


def add_link(path: Path, kind: bytes, target: str) -> Path:
    with tarfile.open(path, "a") as archive:
        entry = tarfile.TarInfo("x/link.mp4")
        entry.type, entry.linkname = kind, target
        archive.addfile(entry)
    return path


@every_kind
@pytest.mark.parametrize("name", ["../up.mp4", "/etc/x.mp4", "a/../../x.mp4", "a/..", "../notes.txt"])
def test_a_name_that_leads_out_of_the_archive_refuses_it(tmp_path: Path, kind: str, name: str) -> None:
    path = WRITERS[kind](tmp_path / f"x.{kind}", {"fine.mp4": b"v", name: b"v"})
    with pytest.raises(ValueError, match=r"is refused: its member .* leads out of the archive"):
        scan(path)


def test_links_devices_and_lies_refuse_an_archive(tmp_path: Path) -> None:
    for number, kind in enumerate((tarfile.SYMTYPE, tarfile.LNKTYPE)):
        path = add_link(write_tar(tmp_path / f"{number}.tar", {"a.mp4": b"v"}), kind, "/etc/passwd")
        with pytest.raises(ValueError, match=r"'x/link.mp4' is a link"):
            scan(path)
    with pytest.raises(ValueError, match=r"'x/link.mp4' is neither a file nor a folder"):
        scan(add_link(write_tar(tmp_path / "device.tar", {"a.mp4": b"v"}), tarfile.CHRTYPE, ""))
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as archive:
        entry = zipfile.ZipInfo("link.mp4")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, "/etc/passwd")
    with pytest.raises(ValueError, match=r"'link.mp4' is a link"):
        scan(tmp_path / "link.zip")
    with pytest.raises(ValueError, match="too many to be true"):
        scan(write_zip(tmp_path / "bomb.zip", {"zeros.mp4": bytes(4 * MAX_TEXT)}))
    data = bytearray(write_zip(tmp_path / "locked.zip", {"a.mp4": b"v"}).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "locked.zip").write_bytes(data)
    with pytest.raises(ValueError, match="is encrypted"):
        scan(tmp_path / "locked.zip")


@every_kind
def test_damaged_archives_are_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"x.{kind}"
    path.write_bytes(b"neither nor" * 200)
    with pytest.raises(ValueError, match="or damaged"):
        scan(path)
    data = WRITERS[kind](path, {"a.mp4": random.Random(0).randbytes(20_000)}).read_bytes()
    path.write_bytes(data[:15_000])
    with pytest.raises(ValueError, match="damaged"):
        scan(path)
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz"):
        pass
    with pytest.raises(ValueError, match="decompress it first"):
        scan(tmp_path / "x.tar.gz")
    with pytest.raises(FileNotFoundError, match="no archive of videos"):
        scan(tmp_path / f"none.{kind}")


def test_a_tar_that_stops_before_its_end_is_refused(tmp_path: Path) -> None:
    """Python's tarfile takes a damaged or missing header for the end, and the members after it would be lost."""
    whole = write_tar(tmp_path / "x.tar", {f"{name}.mp4": name.encode() * 600 for name in "abcd"}).read_bytes()
    member = 512 + 1024  # header and padded bytes
    assert len(scan(tmp_path / "x.tar").videos) == 4 and whole[2 * member : 2 * member + 5] == b"c.mp4"
    damaged = {
        "damaged header": whole[: 2 * member] + b"z" * 100 + whole[2 * member + 100 :],
        "lost header": whole[: 2 * member] + bytes(512) + whole[2 * member + 512 :],
        "cut in a header": whole[: 2 * member + 100],
        "cut between members": whole[: 2 * member],
        "two archives in a row": whole + whole.replace(b".mp4", b".avi"),
    }
    for name, data in damaged.items():
        path = tmp_path / f"{name}.tar"
        path.write_bytes(data)
        with pytest.raises(ValueError, match=f"{name}.tar is damaged"):
            scan(path)
    (tmp_path / "least.tar").write_bytes(whole[: 4 * member + 1024])  # without blocks of 10 kB, as some programs write
    assert len(scan(tmp_path / "least.tar").videos) == 4


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.mp4": b"", "a.json": b"{"}, r"'a\.json' is not JSON"),
        ({"a.mp4": b"", "a.json": b"[]"}, r"'a\.json' is not an object"),
        ({"a.mp4": b"", "a.json": b"\xff"}, r"'a\.json' is not UTF-8"),
        ({"a.mp4": b"", "a.json": b'{"label": ["x"]}'}, "label is .*neither text nor a number"),
        ({"a.mp4": b"", "a.json": b'{"id": "../x"}'}, "is no relative path"),
        ({"a.mp4": b"", "a.json": b'{"subset": "dev"}'}, "subset is 'dev'; expected one of train, test, val"),
        ({"a.mp4": b"", "a.json": b" " * (MAX_TEXT + 1)}, "too many for labels"),
        ({**sample("a", subset="train"), "b.mp4": b""}, r"b\.mp4 has no subset, but others"),
        ({**sample("a", 1, label="x"), **sample("b", 2, label="x")}, "class 'x' has several numbers: 1, 2"),
        ({**sample("a", 1, label="x"), **sample("b", 1, label="y")}, "the number 1 means both class 'x' and 'y'"),
        ({"a.mp4": b"", "a.json": b'{"label": ' + b"9" * 5000 + b"}"}, r"x\.tar: 'a\.json' is not JSON"),
        ({**sample("a", id="x"), **sample("b", id="x")}, r"b\.mp4 and .*a\.mp4 would both have the id 'x'"),
        ({"a.txt": b""}, "no video files"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_sample_is_named(tmp_path: Path, members: dict[str, bytes], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scan(write_tar(tmp_path / "x.tar", members))


def test_a_zip_without_its_first_bytes_is_refused_by_name(tmp_path: Path) -> None:
    whole = write_zip(tmp_path / "x.zip", sample("a")).read_bytes()
    (tmp_path / "x.zip").write_bytes(whole[1:])
    with pytest.raises(ValueError, match=r"x\.zip is damaged: 'a\.mp4' does not begin within it"):
        scan(tmp_path / "x.zip")


def test_options_that_contradict_an_archive_are_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", sample("a", subset="train", source="s"))
    for options, message in (
        ({"test_fraction": 0.5}, "leave --test-fraction out"),
        ({"source_pattern": "(a)"}, "leave --source-pattern out"),
        ({"splits": tmp_path}, "leave --splits out"),
    ):
        with pytest.raises(ValueError, match=message):
            scan(path, **options)
    write_tar(tmp_path / "two" / "1.tar", {"a.mp4": b""})
    write_tar(tmp_path / "two" / "2.tar", {"a.mp4": b""})
    with pytest.raises(ValueError, match=r"2\.tar: a\.mp4 and .*1\.tar: a\.mp4 would both have the id 'a'"):
        scan(tmp_path / "two")


@every_kind
def test_a_member_is_copied_as_it_is_and_only_from_the_archive_that_was_listed(tmp_path: Path, kind: str) -> None:
    data = random.Random(1).randbytes(3_000_000)
    path = WRITERS[kind](tmp_path / f"x.{kind}", {"a.txt": b"first", "./b.mp4": data})
    first, second = list_members(path)
    assert read_member(path, first) == b"first" and second.name == "b.mp4"
    copy_member(path, second, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == data
    assert (tmp_path / "copy").stat().st_mtime_ns == path.stat().st_mtime_ns
    os.utime(path, ns=(0, 0))
    with pytest.raises(ValueError, match="was changed since it was listed"):
        member_sha256(path, second)


@every_kind
def test_a_member_is_a_temporary_file_whose_name_is_in_no_message(tmp_path: Path, kind: str) -> None:
    path = WRITERS[kind](tmp_path / f"x.{kind}", {"deep/b.mp4": b"data"})
    (member,) = list_members(path)
    with pytest.raises(StageError) as caught, local_source(path, member, tmp_path) as source:
        assert source.read_bytes() == b"data" and source.parent == tmp_path
        raise StageError("open", f"{source}: no video")
    assert caught.value.reason == f"{path}: deep/b.mp4: no video"
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    path.unlink()
    with pytest.raises(StageError, match="No such file"), local_source(path, member, tmp_path):
        pass
    with local_source(path, None, tmp_path) as source:
        assert source == path


def test_a_damaged_zip_member_is_a_failure_of_this_video(tmp_path: Path) -> None:
    content = random.Random(0).randbytes(5_000)
    path = write_zip(tmp_path / "x.zip", {"a.mp4": content})
    data = bytearray(path.read_bytes())
    data[2_000] ^= 255
    path.write_bytes(data)
    (member,) = list_members(path)
    with pytest.raises(StageError, match=r"'a\.mp4' is damaged"), local_source(path, member, tmp_path):
        pass


def video_bytes(folder: Path, seed: int, num_frames: int = 8) -> bytes:
    return write_video(folder / f"{seed}.mp4", moving_square(num_frames, seed=seed), codec="libx264").read_bytes()


def test_an_estimate_reads_members_too(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", {"a.mp4": video_bytes(tmp_path, 1), "b.mp4": b"no video"})
    info = make_store_info(
        tmp_path / "none", modalities="rgb", short_edge=0, max_frames=0, quality=18, flow_backend="auto",
        flow_bound="size", flow_size="stored", flow_parameters="", software="",
    )  # fmt: skip
    result = estimate(scan(path).videos, info, decoder=choose_decoder("auto"), flow=None, num_workers=1)
    assert (result.num_sampled, result.num_failed) == (2, 1) and result.hours > 0


@pytest.mark.slow
def test_an_archive_becomes_the_store_of_its_folder_and_is_read_only(tmp_path: Path) -> None:
    names = {"Archery/a.mp4": 1, "Yoyo/b.mp4": 2}
    members = {name: video_bytes(tmp_path, seed) for name, seed in names.items()} | {"Yoyo/c.mp4": b"no video"}
    for name, data in members.items():
        (tmp_path / "folder" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "folder" / name).write_bytes(data)
    path = write_tar(tmp_path / "packed" / "x.tar", members)
    before = path.read_bytes(), path.stat().st_mtime_ns
    done = preprocess(path, tmp_path / "of-archive", *RGB, "--test-fraction", "0.25", layout="archive")
    plain = preprocess(tmp_path / "folder", tmp_path / "of-folder", *RGB, layout="folder")
    assert done.returncode == plain.returncode == exit_codes.SKIPPED_ITEMS, done.stderr
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before and len(list(path.parent.iterdir())) == 1
    first, second = (ClipStore.open(tmp_path / name) for name in ("of-archive", "of-folder"))
    keep = "video_id source class_name label num_frames source_sha256 source_bytes rgb_sha256".split()
    assert [[getattr(r, k) for k in keep] for r in first.records] == [
        [getattr(r, k) for k in keep] for r in second.records
    ]
    assert dict(first.splits["1"]) == dict(second.splits["1"])
    assert f"{path}: Yoyo/c.mp4" in first.failures[0].reason
    assert not list((tmp_path / "of-archive" / ".work" / "tmp").iterdir())

    tree = hash_tree(tmp_path / "of-archive")
    os.utime(path, ns=(time.time_ns(), time.time_ns()))  # another time, the same content
    assert preprocess(path, tmp_path / "of-archive", *RGB, "--test-fraction", "0.25", layout="archive").returncode == 3
    assert hash_tree(tmp_path / "of-archive") == tree
    write_tar(path, members | {"Yoyo/b.mp4": video_bytes(tmp_path, 3, num_frames=9)})
    again = preprocess(path, tmp_path / "of-archive", *RGB, "--test-fraction", "0.25", layout="archive")
    text = " ".join(again.stderr.split())
    assert "1 videos converted" in text and "Yoyo/b.mp4 was changed" in text, text
    assert [r.num_frames for r in ClipStore.open(tmp_path / "of-archive").records] == [8, 9]


def test_a_member_is_hashable_for_it_is_a_part_of_a_video() -> None:
    assert len({Member("a", "./a", 1, 0, 2, 3), Member("a", "./a", 1, 0, 2, 3)}) == 1
