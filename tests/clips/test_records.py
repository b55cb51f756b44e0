"""The tables survive whatever file names hold, and say what is wrong with damaged ones."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from covid_cmsf.clips.records import (
    ClipRecord,
    Failure,
    read_failures,
    read_manifest,
    read_split,
    write_failures,
    write_manifest,
    write_split,
)

RECORD = ClipRecord("Archery/v_Archery_g01_c01", "v_Archery_g01", "Archery", 0, 10, 9, 29.97, 320, 240, "ab")
ODD_NAMES = [
    'a "quoted", name',
    "=1+1",
    "brackets [1]{2}(3)*?",
    "caf\udce9",
    "日本",
    " space ",
    "..hidden",
    "a..b/c.",
]
INVALID_IDS = [
    "",
    "/etc/x",
    "../x",
    "a/../../x",
    "a/..",
    ".",
    "a//b",
    "a/",
    "a\\b",
    "two\nlines",
    "\x1b[31mred",
    "nul\0",
    "\x9b1m",
]


def test_records_come_back_equal_whatever_their_names(tmp_path: Path) -> None:
    records = [RECORD, *(replace(RECORD, video_id=f"c/{name}", class_name=name, source=name) for name in ODD_NAMES)]
    write_manifest(tmp_path / "m.csv", records)
    assert sorted(read_manifest(tmp_path / "m.csv"), key=lambda r: r.video_id) == sorted(
        records, key=lambda r: r.video_id
    )


def test_the_order_of_writing_does_not_matter(tmp_path: Path) -> None:
    records = [replace(RECORD, video_id=str(i)) for i in range(5)]
    write_manifest(tmp_path / "a.csv", records)
    write_manifest(tmp_path / "b.csv", reversed(records))
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_splits_and_failures_come_back_equal(tmp_path: Path) -> None:
    split = dict.fromkeys(ODD_NAMES, "train")
    write_split(tmp_path / "1.csv", split)
    assert read_split(tmp_path / "1.csv") == split
    failures = [Failure(name, "decode", 'reason, with "quotes"\nand lines') for name in sorted(ODD_NAMES)]
    write_failures(tmp_path / "f.csv", failures)
    assert read_failures(tmp_path / "f.csv") == failures
    assert read_failures(tmp_path / "absent.csv") == []


def test_a_video_in_two_subsets_of_a_split_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("video_id,split\na,train\nb,test\na,train\n")
    assert read_split(tmp_path / "1.csv") == {"a": "train", "b": "test"}
    (tmp_path / "1.csv").write_text("video_id,split\na,train\nb,test\na,test\n")
    with pytest.raises(ValueError, match=r"1\.csv: 'a' is listed twice, in 'train' and in 'test'"):
        read_split(tmp_path / "1.csv")


@pytest.mark.parametrize("video_id", INVALID_IDS)
def test_ids_that_could_lead_out_of_the_store_are_refused_in_every_table(tmp_path: Path, video_id: str) -> None:
    writable = video_id.replace("\0", "NUL")  # Python 3.10 cannot write it to a table, nor read it
    write_manifest(tmp_path / "m.csv", [RECORD, replace(RECORD, video_id=writable)])
    write_split(tmp_path / "s.csv", {"good": "train", writable: "test"})
    write_failures(tmp_path / "f.csv", [Failure("good", "open", "?"), Failure(writable, "open", "?")])
    unreadable = "\0" in video_id and sys.version_info < (3, 11)
    reason = "line contains NUL" if unreadable else "a video id is a relative path"
    for read, name in ((read_manifest, "m"), (read_split, "s"), (read_failures, "f")):
        table = tmp_path / f"{name}.csv"
        table.write_bytes(table.read_bytes().replace(b"NUL", b"\0"))
        with pytest.raises(ValueError, match=rf"{name}\.csv.*{reason}") as caught:
            read(table)
        assert unreadable or repr(video_id) in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["class_name", "source"])
def test_class_names_and_sources_with_control_characters_are_refused(tmp_path: Path, column: str) -> None:
    write_manifest(tmp_path / "m.csv", [replace(RECORD, **{column: "\x1b]0;title\a"})])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"m\.csv: '\\x1b.*control character"):
        read_manifest(tmp_path / "m.csv")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text.replace("num_flow", "flows"), "columns are"),
        (lambda text: text.replace(",320,", ",wide,"), "row 2"),
        (lambda text: text.rsplit(",", 1)[0] + "\n", "row 2"),
        (lambda text: text + text.splitlines()[1] + "\n", "two rows have video_id"),
    ],
)
def test_damaged_tables_are_refused_with_the_row(tmp_path: Path, damage, message: str) -> None:  # type: ignore[no-untyped-def]
    write_manifest(tmp_path / "m.csv", [RECORD])
    (tmp_path / "m.csv").write_text(damage((tmp_path / "m.csv").read_text()))
    with pytest.raises(ValueError, match=message):
        read_manifest(tmp_path / "m.csv")


def test_a_manifest_cut_at_a_lines_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.csv"
    write_manifest(path, [replace(RECORD, video_id=f"a/{number}") for number in range(6)])
    assert len(read_manifest(path)) == 6
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    with pytest.raises(ValueError, match="has 2 rows, 6 were written: it was cut or edited.*remove tables.json"):
        read_manifest(path)
    (tmp_path / "tables.json").unlink()
    assert len(read_manifest(path)) == 2, "stores of older versions have no counts"
    (tmp_path / "tables.json").write_text("[")
    with pytest.raises(ValueError, match="tables.json is damaged"):
        read_manifest(path)


def test_a_kill_while_the_manifest_is_replaced_leaves_one_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.csv"
    write_manifest(path, [RECORD])
    real = Path.replace

    for deadly in ("manifest.csv", "tables.json"):
        killed: list[str] = []

        def replace_file(source: Path, target: Path, deadly: str = deadly, killed: list[str] = killed) -> Path:
            if target.name == deadly:
                killed.append(deadly)
                if deadly == "manifest.csv" or len(killed) == 2:  # the second time: after the manifest
                    raise KeyboardInterrupt
            return real(source, target)

        monkeypatch.setattr(Path, "replace", replace_file)
        with pytest.raises(KeyboardInterrupt):
            write_manifest(path, [RECORD, replace(RECORD, video_id="b")])
        monkeypatch.undo()
        assert len(read_manifest(path)) == (1 if deadly == "manifest.csv" else 2)


def test_no_cell_is_taken_for_a_formula(tmp_path: Path) -> None:
    names = ["=1+1", "+1", "-1", "@x", "'=1", "''-a", "'plain", "a=b", "'"]
    failures = [Failure(name, "open", f"{name}, really") for name in sorted(names)]
    write_failures(tmp_path / "f.csv", failures)
    cells = [cell for row in csv.reader((tmp_path / "f.csv").open()) for cell in row]
    assert not [cell for cell in cells if cell[:1] in tuple("=+-@")]
    assert read_failures(tmp_path / "f.csv") == failures
    write_split(tmp_path / "s.csv", dict.fromkeys(names, "train"))
    assert read_split(tmp_path / "s.csv") == dict.fromkeys(names, "train")
    records = [replace(RECORD, video_id=name, source=name, class_name=name) for name in sorted(names)]
    write_manifest(tmp_path / "m.csv", records)
    assert read_manifest(tmp_path / "m.csv") == records
