"""Strategies that damage a valid file: anywhere, or one value of its structure while the rest stays well-formed."""

import csv
import gzip
import hashlib
import io
import json
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import msgpack
import yaml
from hypothesis import strategies as st

from covid_cmsf.verified_files import SHA256_KEY, ZEROS

Strategy = st.SearchStrategy[bytes]
Draw = st.DrawFn
DEEP = 20_000  # levels: more than recursion can follow
TEXTS = (
    "", "0", "-1", "nan", "inf", "1e999", "1_0", "9" * 30, "9" * 5000, "2147483648", "../x", "/etc/passwd", "a\\b",
    "x\0y", "=1+1", "'", '"', '"x', ",", "\n", "\r", "\u2028", "\u0661", "\ufeff", "\udcff", "é", "~",
    "!!python/name:os.system",
)  # fmt: skip
TOKENS = [
    *(text.encode("utf-8", "surrogateescape") for text in TEXTS),
    *(b"\xff\xff\xff\xff", b"\xed\xa0\x80", b"[" * DEEP, b'{"a":' * DEEP, b"NaN", b"1e400", b"null", b"&a [*a]"),
    b"\xdd\xff\xff\xff\xff",  # msgpack: a list of 4 billion values
]  # fmt: skip
VALUES: list[Any] = [
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 2**70, -(2**63) - 1, 0.5, 1e308, float("nan"), float("inf")),
    *(*TEXTS, "\ud800", [], {}, [[]], [None], [1, "a"], {"": 0}, {"a": {"b": []}}, b"", b"\xff"),
]  # fmt: skip


@st.composite
def damaged_bytes(draw: Draw, valid: bytes) -> bytes:
    """Replace, remove, repeat or insert some bytes, once or a few times."""
    data = valid
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        match draw(st.sampled_from(["replace", "remove", "repeat", "token", "cut", "flip"])):
            case "replace":
                data = data[:start] + draw(st.binary(max_size=12)) + data[end:]
            case "remove":
                data = data[:start] + data[end:]
            case "repeat":
                data = data[:end] + data[start:end] * draw(st.integers(1, 3)) + data[end:]
            case "token":
                data = data[:start] + draw(st.sampled_from(TOKENS)) + data[draw(st.sampled_from([start, end])) :]
            case "cut":
                data = data[:start]
            case _ if data:
                place = min(start, len(data) - 1)
                data = data[:place] + bytes([data[place] ^ 1 << draw(st.integers(0, 7))]) + data[place + 1 :]
    return data


@st.composite
def damaged_value(draw: Draw, valid: Any) -> Any:
    """Replace one value somewhere in a tree of lists and mappings, or remove, repeat or rename an entry."""
    if isinstance(valid, dict | list) and valid and draw(st.integers(0, 5)):
        keys = list(valid) if isinstance(valid, dict) else list(range(len(valid)))
        key = draw(st.sampled_from(keys))
        change = draw(st.sampled_from(["inside", "inside", "inside", "remove", "add"]))
        copy: Any = valid.copy()
        if change == "inside":
            copy[key] = draw(damaged_value(valid[key]))
        elif change == "remove":
            del copy[key]
        elif isinstance(copy, dict):
            copy[draw(st.sampled_from(TEXTS))] = copy[key]
        else:
            copy.append(copy[key])
        return copy
    return draw(st.sampled_from(VALUES))


def damaged_json(valid: bytes) -> Strategy:
    """Change one value of a JSON file."""
    text = damaged_value(json.loads(valid)).map(lambda value: json.dumps(value, default=repr).encode())
    return text | damaged_bytes(valid)


@st.composite
def _damaged_cells(draw: Draw, valid: bytes) -> bytes:
    rows = list(csv.reader(io.StringIO(valid.decode("utf-8", "surrogateescape"), newline="")))
    row = draw(st.sampled_from(rows))
    column = draw(st.integers(0, len(row) - 1))
    match draw(st.sampled_from(["cell", "cell", "cell", "shorter", "longer", "column", "swap"])):
        case "cell":
            row[column] = draw(st.sampled_from(TEXTS) | st.text(max_size=5))
        case "shorter":
            del row[column]
        case "longer":
            row.insert(column, row[column])
        case "column":
            for one in rows:
                del one[column : column + 1]
        case _:
            rows.append(draw(st.sampled_from(rows)))
    text = io.StringIO()
    dialect = draw(st.sampled_from(["unix", "excel"]))  # all quoted, or only what needs it
    csv.writer(text, dialect, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogatepass")


def damaged_table(valid: bytes) -> Strategy:
    """Change a cell, a row or a column of a CSV file."""
    return _damaged_cells(valid) | damaged_bytes(valid)


@st.composite
def _damaged_header(draw: Draw, valid: bytes) -> bytes:
    length = struct.unpack("<Q", valid[:8])[0]
    header, data = json.loads(valid[8 : 8 + length]), valid[8 + length :]
    metadata = header.get("__metadata__", {})
    ours = [key for key in metadata if key != SHA256_KEY]
    if draw(st.booleans()) and ours:
        key = draw(st.sampled_from(ours))
        try:
            changed = draw(damaged_value(json.loads(metadata[key])))
            metadata[key] = changed if isinstance(changed, str) else json.dumps(changed, default=repr)
        except ValueError:
            metadata[key] = draw(st.sampled_from(TEXTS))
    elif draw(st.booleans()):
        data = draw(damaged_bytes(data))
        data = data[: len(valid) - 8 - length].ljust(len(valid) - 8 - length, b"\0")
    else:
        header = draw(damaged_value(header))
    return sealed(header, data) if isinstance(header, dict) else struct.pack("<Q", 4) + b"null" + data


def sealed(header: dict[str, Any], data: bytes) -> bytes:
    """Return a safetensors file whose SHA-256 is right, as somebody who knows the format could write it."""
    if isinstance(header.get("__metadata__"), dict) and SHA256_KEY in header["__metadata__"]:
        header = {**header, "__metadata__": {**header["__metadata__"], SHA256_KEY: ZEROS}}
    text = json.dumps(header, separators=(",", ":"), default=repr).encode()
    text += b" " * (-len(text) % 8)
    whole = struct.pack("<Q", len(text)) + text + data
    place = whole.rfind(f'"{SHA256_KEY}":"{ZEROS}'.encode())
    if place < 0:
        return whole
    place += len(SHA256_KEY) + 4
    return whole[:place] + hashlib.sha256(whole).hexdigest().encode() + whole[place + len(ZEROS) :]


def damaged_tensors(valid: bytes) -> Strategy:
    """Change a value in the header of a safetensors file, or its data, and make its hash fit; or damage it anywhere."""
    return _damaged_header(valid) | damaged_bytes(valid)


@st.composite
def _damaged_records(draw: Draw, valid: bytes) -> bytes:
    """Change the records of a zip file; their checksums are right again."""
    source = zipfile.ZipFile(io.BytesIO(valid))
    names = source.namelist()
    chosen = draw(st.sampled_from([name for name in names if name.endswith("data.pkl")] * 3 + names))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))) as archive:
        for name in names:
            data = source.read(name)
            archive.writestr(name, draw(damaged_bytes(data)) if name == chosen else data)
    return target.getvalue()


def damaged_archive(valid: bytes) -> Strategy:
    """Damage one record of a zip file, or the file anywhere."""
    return _damaged_records(valid) | damaged_bytes(valid)


def damaged_msgpack(valid: bytes) -> Strategy:
    """Change one value of a msgpack text."""
    values = damaged_value(msgpack.unpackb(valid, raw=False, strict_map_key=False))
    return values.map(_pack) | damaged_bytes(valid)


def _pack(value: Any) -> bytes:
    try:
        return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))
    except (OverflowError, TypeError):  # msgpack has no such integers
        return bytes(msgpack.packb(repr(value)))


def damaged_gzip(valid: bytes) -> Strategy:
    """Damage what is packed, or the file anywhere."""
    return damaged_bytes(gzip.decompress(valid)).map(gzip.compress) | damaged_bytes(valid)


def damaged_yaml(valid: bytes) -> Strategy:
    """Change one value of a YAML file."""
    return damaged_value(yaml.safe_load(valid)).map(_dump_yaml) | damaged_bytes(valid)


def _dump_yaml(value: Any) -> bytes:
    return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")


Damage = Callable[[bytes], Strategy]
