"""Copies among videos: which kinds of changes does `covid-cmsf search duplicates` see through?

    python tools/benchmark.py duplicates VIDEOS WEIGHTS --work FOLDER

Clips of VIDEOS, a folder of UCF-101's clips, are put into a new folder, each with another clip of its footage, which is
no copy, and with changed copies: re-encoded, cropped, mirrored, faster, slower, brighter, cut out, and followed by
another video. Pairs of different videos get the same intro. Then the commands `search index` and `search duplicates`
run on that folder as a user would run them. Two videos are truly copies if they were made from the same clip.

Then the same commands run on VIDEOS itself: how many of its pairs of clips of one footage are called copies?
"""

import json
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import typer
from numpy.typing import NDArray

from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.names import guess_source
from preprocess.layouts.collection import find_videos
from tools.benchmarks.measure import JsonFile, print_results

Frames = NDArray[np.uint8]
INTRO_SECONDS = 2.0
NUM_INTROS = 6


def _crop(frames: Frames, top: float, left: float, edge: float) -> Frames:
    height, width = frames.shape[1:3]
    rows = slice(round(top * height), round((top + edge) * height) // 2 * 2)
    columns = slice(round(left * width), round((left + edge) * width) // 2 * 2)
    cut = frames[:, rows, columns]
    return cut[:, : cut.shape[1] // 2 * 2, : cut.shape[2] // 2 * 2]


def _speed(frames: Frames, factor: float) -> Frames:
    numbers = np.arange(0, len(frames) - 1e-6, factor).astype(np.int64)
    chosen: Frames = frames[numbers]
    return chosen


def _brighten(frames: Frames) -> Frames:
    brighter: Frames = np.clip(frames * 1.25 + 25, 0, 255).astype(np.uint8)
    return brighter


def _halve(frames: Frames) -> Frames:
    size = frames.shape[2] // 4 * 2, frames.shape[1] // 4 * 2
    return np.stack([cv2.resize(frame, size, interpolation=cv2.INTER_AREA) for frame in frames])


CHANGES: dict[str, Callable[[Frames], Frames]] = {
    "re-encoded": _halve,  # half the size, and a low bit rate
    "cropped": lambda frames: _crop(frames, 0.1, 0.1, 0.8),
    "cropped at a corner": lambda frames: _crop(frames, 0.0, 0.25, 0.75),
    "mirrored": lambda frames: frames[:, :, ::-1],
    "1.5 times as fast": lambda frames: _speed(frames, 1.5),
    "0.7 times as fast": lambda frames: _speed(frames, 0.7),
    "brighter": _brighten,
    "cut out": lambda frames: frames[len(frames) // 4 : len(frames) // 4 + max(40, len(frames) // 2)],
    "followed by another": lambda frames: frames,
}


@dataclass(frozen=True)
class MadeVideo:
    """A video of the collection: what was changed, and the clips that it shows."""

    name: str
    change: str
    clips: frozenset[Path]


def command(
    videos: Path = typer.Argument(..., help="Folder of UCF-101's clips."),
    weights: str = typer.Argument(..., help="An encoder: a run folder, a weights file, or histogram:color."),
    work: Path = typer.Option(..., "--work", help="New folder for the collection and its index."),
    clips: int = typer.Option(40, min=4, help="Clips with changed copies."),
    copies: int = typer.Option(3, min=1, max=len(CHANGES), help="Changed copies per clip."),
    windows: int = typer.Option(8, min=1, help="Windows per video."),
    seed: int = 0,
    json_file: JsonFile = None,
) -> None:
    """Precision and recall of copies by kind of change."""
    made = make_collection(videos, work / "videos", num_clips=clips, num_copies=copies, seed=seed)
    rows = _search(work / "videos", weights, windows, work, "index", "duplicates.json")
    footage = _search(videos, weights, windows, work, "footage-index", "footage-duplicates.json")
    results = {"videos": len(made), "clips": clips, **measure(made, rows), **measure_footage(videos, footage)}
    print_results(results, json_file=json_file)


def _search(videos: Path, weights: str, windows: int, work: Path, index: str, out: str) -> list[dict[str, Any]]:
    """Run the two commands on a folder and return the pairs; an index of an earlier run is used again."""
    if not (work / index / "index.json").is_file():
        _run("index", videos, "--weights", weights, "--windows", windows, "-o", work / index)
    rows: list[dict[str, Any]] = json.loads(_run("duplicates", work / index, "--shared", "--json"))
    (work / out).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return rows


def make_collection(videos: Path, out: Path, *, num_clips: int, num_copies: int, seed: int) -> list[MadeVideo]:
    """Write the collection; videos that exist already are kept."""
    by_source: dict[str, list[Path]] = defaultdict(list)
    for path in find_videos(videos):
        by_source[guess_source(path.stem)].append(path)
    sources = sorted(name for name, paths in by_source.items() if len(paths) > 1)
    if len(sources) < 2 * num_clips + 3 * NUM_INTROS:
        raise typer.BadParameter(f"{len(sources)} sources with two clips; {2 * num_clips + 3 * NUM_INTROS} are needed")
    rng = np.random.default_rng(seed)
    order = [sources[i] for i in rng.permutation(len(sources))]
    others = [by_source[name][0] for name in order[num_clips:]]  # each is used once
    out.mkdir(parents=True, exist_ok=True)
    made: list[MadeVideo] = []

    def add(name: str, change: str, shown: list[Path], frames: Callable[[], Frames]) -> None:
        path = out / f"{name}.mp4"
        if not path.is_file():
            write_video(path, frames(), fps=_fps(videos / shown[0]), low_quality=change == "re-encoded")
        made.append(MadeVideo(name, change, frozenset(shown)))

    kinds = list(CHANGES)
    for number, source in enumerate(order[:num_clips]):
        first, sibling = (by_source[source][i] for i in rng.choice(len(by_source[source]), 2, replace=False))
        add(f"{number:03d}-original", "original", [first], partial(_read, videos / first))
        add(f"{number:03d}-sibling", "sibling", [sibling], partial(_read, videos / sibling))
        for copy in range(num_copies):
            kind = kinds[(number * num_copies + copy) % len(kinds)]
            after = [others[number]] if kind == "followed by another" else []
            frames_of = partial(_change, videos / first, kind, [videos / path for path in after])
            add(f"{number:03d}-{kind.replace(' ', '-')}", kind, [first, *after], frames_of)
    for number in range(NUM_INTROS):
        intro, *pair = others[-3 * number - 3 : len(others) - 3 * number]
        for place, path in enumerate(pair):
            frames_of = partial(_with_intro, videos / intro, videos / path)
            add(f"intro{number}-{place}", "shared intro", [path], frames_of)
    return made


def _change(path: Path, kind: str, after: list[Path]) -> Frames:
    return _join([CHANGES[kind](_read(path)), *map(_read, after)])


def _with_intro(intro: Path, path: Path) -> Frames:
    return _join([_read(intro)[: round(INTRO_SECONDS * _fps(intro))], _read(path)])


def measure(made: list[MadeVideo], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return recall and precision by kind of change, with counts."""
    by_name = {video.name: video for video in made}
    reported = {frozenset((row["first"], row["second"])): row for row in rows if row["kind"] != "shared"}
    original = {next(iter(video.clips)): video.name for video in made if video.change == "original"}
    results: dict[str, Any] = {}
    for kind in CHANGES:
        pairs = [
            frozenset((original[clip], video.name))
            for video in made
            if video.change == kind
            for clip in video.clips & original.keys()
        ]
        found = [pair for pair in pairs if pair in reported]
        involved = [pair for pair in reported if any(by_name[name].change == kind for name in pair)]
        right = [pair for pair in involved if _is_copy(by_name, pair)]
        results[f"{kind}: found"] = f"{len(found)} of {len(pairs)}"
        results[f"{kind}: right"] = f"{len(right)} of {len(involved)}"
    wrong = [sorted(pair) for pair in reported if not _is_copy(by_name, pair)]
    intros = [frozenset((f"intro{number}-0", f"intro{number}-1")) for number in range(NUM_INTROS)]
    shared = {frozenset((row["first"], row["second"])) for row in rows if row["kind"] == "shared"}
    results["shared intro: called copies"] = f"{sum(pair in reported for pair in intros)} of {len(intros)}"
    results["shared intro: called shared"] = f"{sum(pair in shared for pair in intros)} of {len(intros)}"
    siblings = [frozenset((video.name, video.name.replace("sibling", "original"))) for video in made]
    siblings = [pair for pair in siblings if len(pair) == 2]
    results["siblings: called copies"] = f"{sum(pair in reported for pair in siblings)} of {len(siblings)}"
    results["all reported pairs: right"] = f"{len(reported) - len(wrong)} of {len(reported)}"
    results["wrong pairs"] = "; ".join(" and ".join(pair) for pair in wrong) or "none"
    return results


def measure_footage(videos: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return how many pairs of clips of one footage, and of different footage, are called copies."""
    counts = Counter(guess_source(path.stem) for path in find_videos(videos))
    pairs = sum(count * (count - 1) // 2 for count in counts.values())
    called = [(row["first"], row["second"]) for row in rows if row["kind"] != "shared"]
    sources = [[guess_source(Path(name).name) for name in pair] for pair in called]
    across = ["; ".join(pair) for pair, (a, b) in zip(called, sources, strict=True) if a != b]
    return {
        "one footage: called copies": f"{len(called) - len(across)} of {pairs}",
        "different footage: called copies": f"{len(across)}: {', '.join(across)}" if across else "0",
    }


def _is_copy(by_name: dict[str, MadeVideo], pair: frozenset[str]) -> bool:
    first, second = (by_name[name] for name in pair)
    return bool(first.clips & second.clips)


def _run(*args: object) -> str:
    command = [sys.executable, "-m", "covid_cmsf", "search", *map(str, args)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 3):
        raise typer.Exit(done.returncode)
    return done.stdout


def _read(path: Path) -> Frames:
    with open_video(path) as reader:
        return np.stack(list(reader.frames()))


def _fps(path: Path) -> int:
    with open_video(path) as reader:
        return round(float(reader.fps))


def _join(parts: list[Frames]) -> Frames:
    height, width = parts[0].shape[1:3]
    return np.concatenate([np.stack([cv2.resize(frame, (width, height)) for frame in part]) for part in parts])


def write_video(path: Path, frames: Frames, *, fps: int, low_quality: bool = False) -> None:
    """Encode RGB frames (T, H, W, 3) as H.264."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=fps, options={"crf": "36" if low_quality else "23"})
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = frames.shape[1], frames.shape[2], "yuv420p"
        for frame in frames:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")))
        file.mux(stream.encode(None))
