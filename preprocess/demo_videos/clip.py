"""One clip of the set, from its name alone: neither other clips nor the number of workers change it."""

from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from preprocess.demo_videos.looks import HOMES, draw_look
from preprocess.demo_videos.motions import MOTIONS
from preprocess.demo_videos.names import ClipName
from preprocess.demo_videos.render import render
from preprocess.demo_videos.settings import DemoSettings
from preprocess.demo_videos.shots import draw_shot
from preprocess.demo_videos.writing import encode, write_bytes


def draw_clip(name: ClipName, settings: DemoSettings) -> NDArray[np.uint8]:
    """RGB frames (T, H, W, 3): the look is drawn by group, the shot by clip."""
    motion = MOTIONS[name.class_name]
    group_seed = [settings.seed, crc32(name.class_name.encode()), name.group]
    look = draw_look(
        np.random.default_rng(group_seed),
        kind=motion.kind,
        home=HOMES[name.class_name],
        width=settings.width,
        height=settings.height,
        difficulty=settings.difficulty,
    )
    shot = draw_shot(
        np.random.default_rng([*group_seed, name.clip]),
        motion,
        num_frames=settings.num_frames,
        fps=settings.fps,
        difficulty=settings.difficulty,
    )
    return render(look, shot)


def write_clip(out: Path, name: ClipName, settings: DemoSettings) -> None:
    """Draws a clip and writes its video file under the folder `out`."""
    write_bytes(out / name.path, encode(draw_clip(name, settings), settings.fps))
