"""Running `python -m preprocess` as a user would, with settings that make it quick."""

import hashlib
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

QUICK = ["--flow-backend", "opencv", "--flow-parameters", "warps=1,nscales=2,outer_iterations=1", "--workers", "1"]


def command(videos: Path, out: Path, *options: str, layout: str = "ucf101") -> list[str]:
    return [sys.executable, "-m", "preprocess", str(videos), "--out", str(out), "--layout", layout, *QUICK, *options]


def preprocess(videos: Path, out: Path, *options: str, layout: str = "ucf101") -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(videos, out, *options, layout=layout), capture_output=True, text=True, timeout=300)


def run_cli(*args: object) -> subprocess.CompletedProcess[str]:
    """Run `covid-cmsf` as a user would."""
    words = [sys.executable, "-m", "covid_cmsf", *map(str, args)]
    return subprocess.run(words, capture_output=True, text=True, timeout=300)


def hash_tree(store: Path) -> dict[str, str]:
    """{relative path: hash} of everything that a user sees in a store."""
    return {
        path.relative_to(store).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file() and ".work" not in path.parts
    }


def count_done(store: Path) -> Counter[str]:
    """How often each video was recorded as done, by all processes together, from their logs."""
    lines = [line for log in (store / ".work" / "logs").glob("*.jsonl") for line in log.read_text().splitlines()]
    done = [json.loads(line) for line in lines if '"message": "done: ' in line]
    return Counter(line["video_id"] for line in done)
