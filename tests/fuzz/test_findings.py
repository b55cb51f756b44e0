"""What fuzzing has found, as small files in corpus/ and as literals: none of it may be read wrongly again."""

import gzip
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from covid_cmsf.evaluation.features.old_formats import skipped_from_json, upgrade_header
from covid_cmsf.models.checkpoints.metadata import parse_metadata
from covid_cmsf.search.page.saved import is_text
from tests.fuzz.mutations import DEEP, sealed
from tests.fuzz.test_readers import CORPUS, TARGETS, corpus_folder, read_damaged

LONG = b"a" * 140_000  # more than a cell of the module csv may have
MANY_DIGITS = b"9" * 5000  # more than `int` takes
FILES = sorted(path for path in CORPUS.rglob("*") if path.is_file())
BY_NAME = {target.name: target for target in TARGETS}
BY_FOLDER = {corpus_folder(target): target for target in TARGETS}


def with_metadata(text: str) -> Callable[[bytes], bytes]:
    """Return a function that sets the first entry of a safetensors file's metadata, and its hash."""

    def change(valid: bytes) -> bytes:
        length = struct.unpack("<Q", valid[:8])[0]
        header = json.loads(valid[8 : 8 + length])
        key = next(key for key in header["__metadata__"] if not key.endswith("sha256"))
        header["__metadata__"][key] = text
        return sealed(header, valid[8 + length :])

    return change


def with_entry(name: str, value: object) -> Callable[[bytes], bytes]:
    """Return a function that sets an entry of a JSON file."""
    return lambda valid: json.dumps({**json.loads(valid), name: value}).encode()


FINDINGS: list[tuple[str, bytes | Callable[[bytes], bytes]]] = [
    ("labels of a page", b"video,label\nv0," + LONG + b"\n"),
    ("decisions", b"first,second,decision\nv0,v1," + LONG + b"\n"),
    ("project labels", b"file,label\na.mp4," + LONG + b"\n"),
    ("kinetics train.csv", b"label,youtube_id,split\nA," + LONG + b",train\n"),
    ("index videos", lambda valid: valid + b"v9,s," + LONG + b",1,1\n"),
    ("index videos", lambda valid: valid.replace(b"v0,", b"../v0,")),
    ("index videos", lambda valid: valid.replace(b",0,", b",zero,")),
    ("video list x.jsonl", b'{"file": "videos/A/a.mp4", "start": ' + MANY_DIGITS + b"}\n"),
    ("ssv2 train.json", b'[{"id": ' + MANY_DIGITS + b"}]"),
    ("store", b"[" * DEEP),
    ("counts", b'{"manifest.csv": [Infinity]}'),
    ("counts", b"[" * DEEP),
    ("noisy labels json", b"[]"),
    ("noisy labels json", b"{"),
    ("copies", b"null"),
    ("copies", with_entry("pairs", [{"first": 0}])),
    ("copies", with_entry("pairs", None)),
    ("index", b'{"format": 2, "videos_sha256": "x", "modalities": []}'),
    ("index", with_entry("weights", {"rgb": "heavy"})),
    ("index", with_entry("clips_path", 1)),
    ("index", with_entry("modalities", {"rgb": None})),
    ("answers", with_metadata("{}")),
    ("answers", with_metadata("[" * DEEP)),
    ("answers", with_metadata('{"format": 1, "metrics": ["R@1", "R@5", "R@10"]}')),
    ("features", with_metadata('{"provenance": ' + MANY_DIGITS.decode() + "}")),
    ("features", with_metadata("[" * DEEP)),
    ("probabilities", with_metadata('{"provenance": {"format": 3}, "class_names": null}')),
    ("card", b"[" * DEEP),
    ("idx", struct.pack(">BBBB4I", 0, 0, 8, 4, *[1 << 16] * 4)),  # whose product is 0 in 64 bits
    ("idx", bytes([0, 0, 8, 255]) + bytes(4 * 255)),
    ("idx gzip", lambda valid: valid[:20] + b"\xff" + valid[21:]),
    ("idx gzip", gzip.compress(struct.pack(">BBBB1I", 0, 0, 8, 1, 3) + bytes(1 << 26))),  # 64 MB in 64 kB
    ("huggingface metadata.csv", lambda valid: valid + valid.splitlines()[1] + b"\n"),  # a file twice
    ("run plan.json", b"null"),
    ("run plan.json", b"[" * DEEP),
    ("transformers config.json", with_entry("num_frames", float("inf"))),
    ("transformers config.json", with_entry("architectures", 5)),
    ("transformers preprocessor_config.json", with_entry("image_mean", "gray")),
    ("transformers preprocessor_config.json", with_entry("rescale_factor", None)),
    ("lmdb __vlen__", lambda valid: valid[:1] + b"\xff" + valid[2:]),  # -1 frames
]


@pytest.mark.parametrize(("name", "data"), FINDINGS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(FINDINGS)])
def test_what_was_found_is_refused_by_name(name: str, data: bytes | Callable[[bytes], bytes], tmp_path: Path) -> None:
    target = BY_NAME[name]
    path = target.write(tmp_path)
    assert not read_damaged(target, path, data if isinstance(data, bytes) else data(path.read_bytes()))


# What a report leaves out with a note, as it does before a run has written it.
DAMAGED_RUNS: list[tuple[str, bytes]] = [
    *((f"run {name}.json", text) for name in ("stage", "summary", "retrieval", "linear") for text in (b"null", b"[1]")),
    ("run stage.json", b'{"r1": "high"}'),
    ("run stage.json", b'{"r1": NaN}'),
    ("run stage.json", b"[" * DEEP),
    ("run summary.json", b'{"progress": null}'),
    ("run summary.json", b'{"guides": {"guide_rgb": {}}}'),
    ("run retrieval.json", b'{"recall": [50.0], "features": [[]]}'),
    ("run linear.json", b'{"scores": null}'),
    ("run index.json", b"null"),
    ("run index.json", b'[{"file": 1}]'),
    ("run environment.jsonl", b"null\n"),
    ("run environment.jsonl", b'{"command": 5}\n'),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "data"), DAMAGED_RUNS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(DAMAGED_RUNS)]
)
def test_a_report_leaves_out_what_is_damaged(name: str, data: bytes, tmp_path: Path) -> None:
    target = BY_NAME[name]
    path = target.write(tmp_path)
    assert read_damaged(target, path, data)


@pytest.mark.parametrize("file", FILES, ids=[str(path.relative_to(CORPUS)) for path in FILES])
def test_kept_files_are_read_or_refused_by_name(file: Path, tmp_path: Path) -> None:
    target = BY_FOLDER[file.parent]
    read_damaged(target, target.write(tmp_path), file.read_bytes())


def test_the_corpus_is_not_empty() -> None:
    assert FILES


def test_headers_of_old_formats_are_refused_by_name() -> None:
    assert upgrade_header({"about": 1}) == {"provenance": 1} and upgrade_header({"x": 1}) == {"x": 1}
    for values in (None, [1], [["id", "train"]]):
        with pytest.raises(ValueError, match=r"x\.safetensors: the list of skipped videos is damaged"):
            skipped_from_json(values, location="x.safetensors")
    with pytest.raises(ValueError, match="here: the encoder metadata is not JSON"):
        parse_metadata("[" * DEEP, location="here")


def test_labels_that_a_table_cannot_hold_are_known() -> None:
    assert is_text("Ärger 🎉") and not is_text("\ud800") and not is_text("a\rb") and not is_text("a\0b")
