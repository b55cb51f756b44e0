"""The cost of verifying a stored video (SHA-256) when a process first reads it, beside decoding a clip of it.

python tools/benchmark.py verify_clips CLIPS [--length 32]
"""

from pathlib import Path

import typer

from covid_cmsf.clips.records import ClipRecord, clip_path
from covid_cmsf.clips.store import ClipStore, verify_clip
from tools.benchmarks.measure import JsonFile, print_results, summarize_times, time_calls


def command(
    clips: Path = typer.Argument(..., help="A clip store."),
    length: int = typer.Option(32, min=1, help="Frames per clip."),
    repeats: int = typer.Option(5, min=1),
    json_file: JsonFile = None,
) -> None:
    """Verify and decode every video's RGB file, in turns."""
    store = ClipStore.open(clips)
    records = [record for record in store.records if record.rgb_sha256]
    if not records:
        raise typer.BadParameter(f"{clips} has no hashes: it was made by an older version")

    def verify(record: ClipRecord) -> None:
        verify_clip(clip_path(clips, "rgb", record.video_id), record, "rgb")

    def decode(record: ClipRecord) -> None:
        store.read_raw(record, "rgb", range(min(length, record.num_frames)))

    times: dict[str, list[float]] = {"verify": [], "decode": []}
    for record in records:
        decode(record)  # verifies once
    for _ in range(repeats):
        for record in records:
            times["verify"] += time_calls(lambda record=record: verify(record), repeats=1)  # type: ignore[misc]
            times["decode"] += time_calls(lambda record=record: decode(record), repeats=1)  # type: ignore[misc]
    medians = {name: summarize_times(measured)["median_s"] for name, measured in times.items()}
    results = {f"{name}_ms": 1000 * seconds for name, seconds in medians.items()}
    results["share"] = medians["verify"] / (medians["verify"] + medians["decode"])
    results["kilobytes_per_file"] = sum(record.rgb_bytes for record in records) / len(records) / 1000
    print_results(results, json_file=json_file)
