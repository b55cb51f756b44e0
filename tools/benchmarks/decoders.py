"""Decoders: CPU time a frame of every installed one, for a whole file and for the frames of a clip."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from covid_cmsf.clips.decoders import DECODERS, VideoReader, choose_decoder, open_video
from tools.benchmarks.extraction import choose_clips
from tools.benchmarks.measure import JsonFile, print_results


def command(
    videos: Annotated[list[Path], typer.Argument(help="video files, or folders such as a clip store")],
    limit: Annotated[int, typer.Option(min=1, help="files, spread over all that are found")] = 20,
    frames: Annotated[
        int, typer.Option(min=1, help="frames of a clip, every second one from the middle of the file")
    ] = 8,
    repeats: Annotated[int, typer.Option(min=1, help="rounds over all files")] = 3,
    json_file: JsonFile = None,
) -> None:
    """Decoders: all frames in order, as `preprocess` reads; of .mp4 also one clip, as training reads."""
    names = [name for name in DECODERS if _is_installed(name)]
    clips = choose_clips(videos, limit)
    seconds: dict[str, float] = {}
    counts = {"all": 0, "clip": 0}
    for _ in range(repeats):
        for path in clips:
            with open_video(path) as reader:
                length = sum(1 for _ in reader.frames())
            numbers = list(range(length // 2, length, 2))[:frames]
            counts["all"] += length
            is_stored = path.suffix == ".mp4"  # others may have time stamps that no frame can be found by
            counts["clip"] += len(numbers) if is_stored else 0
            for name in names:
                work: dict[str, Callable[[VideoReader], object]] = {
                    "all": lambda reader: sum(1 for _ in reader.frames())
                }
                if is_stored:
                    work["clip"] = partial(_read, numbers)
                for kind, read in work.items():
                    start = time.process_time()
                    with open_video(path, name) as reader:
                        read(reader)
                    key = f"{name}_{kind}"
                    seconds[key] = seconds.get(key, 0.0) + time.process_time() - start
    results: dict[str, Any] = {"files": len(clips), "auto": choose_decoder("auto")}
    results |= {
        f"{key}_cpu_ms_a_frame": 1000 * value / counts[key.rpartition("_")[2]] for key, value in sorted(seconds.items())
    }
    print_results(results, json_file=json_file)


def _read(numbers: list[int], reader: VideoReader) -> object:
    return reader.read_rgb(numbers)


def _is_installed(name: str) -> bool:
    try:
        return choose_decoder(name) == name
    except ValueError:
        return False
