"""The command `covid-cmsf demo-videos`."""

import os
import time
from pathlib import Path

import typer

from preprocess.synthetic.config import DemoConfig, parse_difficulty, parse_frame_size

DEFAULT = DemoConfig()


def demo_videos(
    out: Path = typer.Argument(help="Folder to write, new or to resume.", show_default=False),
    classes: int = typer.Option(DEFAULT.num_classes, help="Number of classes, at most 12."),
    groups: int = typer.Option(
        DEFAULT.num_groups, help="Groups per class, each with its own appearance; 7 of 25 are for testing."
    ),
    clips_per_group: int = typer.Option(DEFAULT.clips_per_group, help="Clips per group."),
    frames: int = typer.Option(DEFAULT.num_frames, help="Frames per clip."),
    size: str = typer.Option(f"{DEFAULT.width}x{DEFAULT.height}", help="WIDTHxHEIGHT of the frames, both even."),
    fps: int = typer.Option(DEFAULT.fps, help="Frames per second; motions keep their speed in seconds."),
    seed: int = typer.Option(DEFAULT.seed, help="The same seed and options give the same bytes."),
    difficulty: str = typer.Option(
        "medium", help="easy, medium, hard, or a number from 0 to 1: strength of misleading cues."
    ),
    audio: bool = typer.Option(DEFAULT.audio, "--audio", help="Give the videos sound, which follows the motion."),
    workers: int = typer.Option(min(2, os.cpu_count() or 1), help="Worker processes; they don't change the result."),
) -> None:
    """Generate a small action data set in UCF-101's layout, to try everything without a download.

    A class is a motion of a kind of object: a ball that bounces, a wheel that rolls, two boxes that meet. The
    group's appearance (colors, light, clutter) misleads RGB; the clip's camera, speed and moving patches mislead flow.
    Test groups have appearances that are not in the training subset.

    Writes OUT/<Class>/v_<Class>_gNN_cMM.avi and OUT/splits with lists in UCF-101's format. Run the same command to
    resume after an interruption.

    \b
    covid-cmsf demo-videos demo/videos
    covid-cmsf preprocess demo/videos --layout ucf101 --splits demo/videos/splits -o demo/clips
    """
    width, height = parse_frame_size(size)
    config = DemoConfig(
        num_classes=classes,
        num_groups=groups,
        clips_per_group=clips_per_group,
        num_frames=frames,
        width=width,
        height=height,
        fps=fps,
        seed=seed,
        difficulty=parse_difficulty(difficulty),
        audio=audio,
    )
    start = time.monotonic()
    num_written = _generate_with_progress(out, config, workers)
    seconds = time.monotonic() - start
    if num_written:
        typer.echo(f"{num_written} of {config.num_clips} videos written to {out} in {seconds:.0f} s")
    else:
        typer.echo(f"{out} already has all {config.num_clips} videos with these settings; nothing to do")


def _generate_with_progress(out: Path, config: DemoConfig, workers: int) -> int:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from covid_cmsf.logs import console
    from preprocess.synthetic import generate

    columns = (TextColumn("demo videos"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=config.num_clips)
        return generate(out, config, workers=workers, on_progress=lambda num_done: bar.update(task, completed=num_done))
