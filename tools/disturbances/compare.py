"""Two results of one command: which files differ.

Files are compared byte for byte, except where times are inside, or hashes of files with times inside; those are
compared by content, as the tables below say.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# Values of JSON objects, at any depth, that are not the same in two undisturbed runs.
TIMES = {"seconds", "seconds_last_start", "samples_per_s", "data_fraction"}
HASHES_OF_TIMES = {
    "checkpoint_sha256",  # a checkpoint holds the seconds of its run
    "fingerprint",  # of features: a hash over the checkpoint's
    "videos_sha256",  # of a clip store: a hash over the times of its files
    "covid_cmsf_sha256",  # the hash of a file with one of these inside
    "index_key",  # of a project, and `page_key`: hashes over fingerprints
    "page_key",
    "index_sha256",  # of an index that has fingerprints inside, and of its description
    "content_sha256",
}
TIME_OF_DAY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
LEFT_OUT = object()
Content = Callable[[Path], object]


def snapshot(out: Path, rules: str) -> dict[str, object]:
    """Return {relative path: content} of everything that has to be the same, for a file or a folder."""
    if out.is_file():
        return {out.name: _digest(out)}
    found = {}
    for path in sorted(out.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        name = path.relative_to(out).as_posix()
        content = _content(path, name, RULES[rules])
        if content is not LEFT_OUT:
            found[name] = content
    return found


def differing(one: dict[str, object], other: dict[str, object]) -> list[str]:
    """Return the names of the files that are missing in one of two snapshots, or that differ."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _content(path: Path, name: str, rules: list[tuple[str, Content]]) -> object:
    for pattern, content in rules:
        if fnmatchcase(name, pattern) or fnmatchcase(name, f"*/{pattern}"):
            try:
                return content(path)
            except (ValueError, RuntimeError, EOFError, OSError, KeyError, zlib.error) as error:
                return f"unreadable: {error}"
    return _digest(path)


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else f"a link to {path.readlink()}"


def _left_out(path: Path) -> object:
    return LEFT_OUT


def without_times(value: Any) -> Any:
    """Return a JSON value without times, and without hashes over times."""
    if isinstance(value, dict):
        left_out = TIMES | HASHES_OF_TIMES
        return {key: without_times(inner) for key, inner in value.items() if key not in left_out}
    return [without_times(inner) for inner in value] if isinstance(value, list) else value


def _json(path: Path) -> object:
    return without_times(json.loads(path.read_bytes()))


def _json_lines(path: Path) -> object:
    return [without_times(json.loads(line)) for line in path.read_bytes().splitlines()]


def _table(path: Path) -> object:
    """The columns of a plan's table without the one of its times."""
    lines = path.read_text().splitlines()
    column = lines[0].split(",").index("seconds")
    return [[cell for number, cell in enumerate(line.split(",")) if number != column] for line in lines]


def _markdown(path: Path) -> object:
    return re.sub(r"\b\d+(\.\d+)? (s|min|h)\b", "TIME", path.read_text())


def _page_script(path: Path) -> object:
    """A script that holds JSON; it says when it was written."""
    return TIME_OF_DAY.sub("TIME", path.read_text())


def _version_script(path: Path) -> object:
    """A script with a hash over all data of the page, the time at which it was written included."""
    return re.sub(r"\b[0-9a-f]{12,64}\b", "HASH", path.read_text())


def _tensors(path: Path) -> tuple[object, ...]:
    """All tensors and the header of a safetensors file; also proves that its own hash is right."""
    import torch
    from safetensors import safe_open

    from covid_cmsf.verified_files import verify_tensors

    verify_tensors(path)
    with safe_open(path, framework="pt") as file:
        header = {key: _header_value(text) for key, text in (file.metadata() or {}).items()}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    hashes = {
        name: hashlib.sha256(one.contiguous().flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
        for name, one in tensors.items()
    }
    return without_times(header), hashes, {name: (str(one.dtype), tuple(one.shape)) for name, one in tensors.items()}


def _tensors_only(path: Path) -> object:
    return _tensors(path)[1:]


def _header_value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _checkpoint(path: Path) -> object:
    """Every value of a checkpoint except the seconds."""
    import torch

    found: dict[str, object] = {}

    def visit(value: Any, place: str) -> None:
        if isinstance(value, dict | list | tuple):
            for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
                if key not in TIMES:
                    visit(inner, f"{place}.{key}")
        elif isinstance(value, torch.Tensor):
            data = value.contiguous().flatten().view(torch.uint8).numpy()
            found[place] = str(value.dtype), tuple(value.shape), hashlib.sha256(data.tobytes()).hexdigest()
        else:
            found[place] = value

    visit(torch.load(path, weights_only=True), "")
    return found


def _listed_hash(path: Path) -> object:
    """The list of checkpoints: the newest must have the hash that it says; which others are kept depends on kills."""
    newest = json.loads(path.read_bytes())[-1]
    if _digest(path.parent / newest["file"]) != newest["sha256"]:
        return f"{newest['file']} has another hash than the list says"
    return "sound"


_CLIPS: list[tuple[str, Content]] = [
    (".work/logs/*", _left_out),  # a file per process
    (".work/ledger/*", _left_out),  # times; what it says is in the manifest
    (".work/adopted", _left_out),
]
_RUN: list[tuple[str, Content]] = [
    *_CLIPS,
    ("log.txt", _left_out),  # what was printed, with times
    ("environment.jsonl", _left_out),  # a line per start
    ("metrics.jsonl", _json_lines),
    ("checkpoints/index.json", _listed_hash),
    ("checkpoints/last.pt", _checkpoint),
    ("checkpoints/step-*.pt", _left_out),  # `last.pt` is the newest; the others depend on when it was interrupted
    ("table.csv", _table),
    ("table.md", _markdown),
    ("page/data/version.js", _version_script),
    ("page/data/page.js", _page_script),
    ("guide_*.safetensors", _tensors_only),  # its key has a hash over the times of the clips
    ("*.json", _json),
    ("*.safetensors", _tensors),
    ("*.features", _tensors),
]
RULES: dict[str, list[tuple[str, Content]]] = {"bytes": [], "clips": _CLIPS, "run": _RUN}
