"""The quick way through a manifest reads what the module csv reads, or leaves it to csv."""

import csv
import io
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.clips import plain_csv, records
from covid_cmsf.clips.plain_csv import cut_cells, join_cells, parse_floats, parse_integers, read_blocks, split_plain
from covid_cmsf.clips.records import ClipRecord, read_manifest, write_manifest

PLAIN = b'"a/b",1,"",-20\n"caf\xe9",300,"x y",7\n"\xe6\x97\xa5",0,"",0\n'
IS_TEXT = [True, False, True, False]
NAMES = ["plain", "a, b", 'say "hi"', "-x", "'=1", "caf\udce9", "日本", " x "]


def test_plain_cells_are_those_of_csv() -> None:
    found = split_plain(PLAIN, IS_TEXT)
    assert found is not None
    rows = list(csv.reader(io.StringIO(PLAIN.decode("utf-8", "surrogateescape"), newline="")))
    for column, (starts, ends) in enumerate(zip(found[0].T, found[1].T, strict=True)):
        expected = [row[column].encode("utf-8", "surrogateescape") for row in rows]
        assert cut_cells(PLAIN, starts, ends) == expected and join_cells(PLAIN, starts, ends) == b"".join(expected)


@pytest.mark.parametrize(
    "block",
    [
        b'"a,b",1,"",2\n',  # a comma inside
        b'"a""b",1,"",2\n',  # a quote inside
        b'"a\nb",1,"",2\n',  # a line end inside
        b'a,1,"",2\n',  # text without quotes
        b'"a",1,"",2',  # no line end
        b'"a",1,"",2\r\n',
        b'"a",1,2\n',  # a cell is missing
        b'"a",1,"",2\n\n',
        b'"a,1",,2\n',  # as many quotes and commas as a plain row
        b'a"b"c,1,"",2\n',
        b'",1,",1\n',
        b'"a","1",x,2\n',
    ],
)
def test_what_is_not_plain_is_left_to_csv(block: bytes) -> None:
    assert split_plain(block, IS_TEXT) is None


def cells_of(*texts: str) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return a row of text and then some bare cells, with the first byte and the end of these."""
    ends = 9 + np.cumsum([len(text) + 1 for text in texts])
    return f'"v_video",{",".join(texts)}\n'.encode(), ends - [len(text) for text in texts], ends


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "7", "12345678", "123456789", "1234567890123456", "12345678901234567", "1700000000123456789",
     str(2**63 - 1), "-" + "9" * 18, "007", "-9", "12345"],
)  # fmt: skip
def test_integers_are_those_of_python(text: str) -> None:
    parsed = parse_integers(*cells_of("5", text, "123"))
    assert parsed is not None and parsed.tolist() == [5, int(text), 123]


def test_integers_of_any_length_are_those_of_python() -> None:
    generator = random.Random(0)
    numbers = [
        generator.randrange(10**places) * generator.choice([1, -1]) for places in range(1, 19) for _ in range(50)
    ]
    parsed = parse_integers(*cells_of(*map(str, numbers)))
    assert parsed is not None and parsed.tolist() == numbers


def test_floats_are_those_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = random.Random(0)
    exact = [30000 / 1001, 25.0, 0.1, 15.0, 4.5, 12.345678, 29.97, 0.0, 100000.0]
    exact += [round(generator.uniform(0, 10**i), 12 - i) for i in range(6) for _ in range(50)]
    long = [24000 / 1001, 1e-05, float("inf"), -3.5, 2.0**60, 1 / 3]
    for numbers in (exact, exact + long):
        block, starts, ends = cells_of(*map(repr, numbers))
        parsed = parse_floats(block, starts, ends)
        assert parsed is not None and parsed.tolist() == numbers
    monkeypatch.setattr(plain_csv, "cut_cells", None)  # those of few digits take the quick way
    parsed = parse_floats(*cells_of(*map(repr, exact)))
    assert parsed is not None and parsed.tolist() == exact


@pytest.mark.parametrize(
    "text", ["", "-", "1.5", "1 ", "+1", "1_0", "x", "--1", "1-", "1:", "1/", "12345678x", str(2**63), "9" * 20]
)
def test_other_numbers_are_left_to_csv(text: str) -> None:
    assert parse_integers(*cells_of("5", text)) is None
    if not text[:-1].replace(".", "").isdigit() and text not in ("1_0", "+1"):
        assert parse_floats(*cells_of("5.0", text)) is None


@pytest.mark.parametrize("text", ["1.x", "x.1", ".", "1.2.3", "1.5 x", "1.:", "/.1", "12345678.123x"])
def test_malformed_floats_are_left_to_csv(text: str) -> None:
    assert parse_floats(*cells_of("5.0", text)) is None


@pytest.mark.parametrize("block_size", [1, 300, 1 << 20])
@pytest.mark.parametrize("has_sizes", [False, True])
def test_a_manifest_of_plain_and_odd_rows_is_read_as_csv_alone_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block_size: int, has_sizes: bool
) -> None:
    record = ClipRecord("", "", "", 0, 10, 9, 30000 / 1001, 320, 240, "ab" * 32)
    written = [
        replace(
            record, video_id=f"{i // 5 % 2}/{i:03d}{NAMES[i * (i % 11 == 0) % 8]}", source=NAMES[i % 97 % 8], label=i
        )
        for i in range(200)
    ]
    if has_sizes:
        written = [replace(one, rgb_bytes=one.label**5, rgb_sha256="cd" * 32, flow_bound=0.1) for one in written]
    write_manifest(tmp_path / "manifest.csv", written)
    monkeypatch.setattr(plain_csv, "BLOCK_SIZE", block_size)
    both = read_manifest(tmp_path / "manifest.csv")
    monkeypatch.setattr(records, "_parse_plain", lambda *_: None)
    assert both == read_manifest(tmp_path / "manifest.csv") == sorted(written, key=lambda one: one.video_id)


def test_most_rows_of_a_manifest_take_the_quick_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ClipRecord("", "s", "c", 0, 10, 9, 29.97, 320, 240, "ab" * 32)
    write_manifest(tmp_path / "manifest.csv", [replace(record, video_id=f"c/{i:04d}") for i in range(1000)])
    monkeypatch.setattr(records, "parse_block", None)
    assert len(read_manifest(tmp_path / "manifest.csv")) == 1000


def test_equal_ids_in_different_blocks_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ClipRecord("", "s", "c", 0, 10, 9, 29.97, 320, 240, "ab")
    path = tmp_path / "manifest.csv"
    write_manifest(path, [replace(record, video_id=f"c/{i}") for i in range(9)])
    lines = path.read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(plain_csv, "BLOCK_SIZE", 1)
    path.write_bytes(b"".join([*lines[:-1], lines[5]]))
    with pytest.raises(ValueError, match="two rows have video_id 'c/4'"):
        read_manifest(path)


def test_blocks_end_between_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_csv, "BLOCK_SIZE", 3)
    data = b'"a"\n"two\nlines"\n"c""d"\n"end"'
    assert list(read_blocks(io.BytesIO(data))) == [b'"a"\n', b'"two\nlines"\n', b'"c""d"\n', b'"end"']
