"""The sound of generated videos follows the motion, and is heard over the noise of the place."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import av
import numpy as np
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.clips.decoders import open_video
from preprocess.synthetic import DemoConfig, generate
from preprocess.synthetic.config import ClipName
from preprocess.synthetic.dataset import clip_sound, clip_trajectory
from preprocess.synthetic.sound import CLICK_ANGLE, RATE, body_sound, clicks

SMALL = DemoConfig(num_classes=2, num_groups=2, clips_per_group=1, num_frames=30, width=48, height=36)
TIMBRE = np.array([1.0, 0.2, 0.1, 0.0])


def test_sets_without_sound_are_what_they_were_and_pictures_do_not_depend_on_sound(tmp_path: Path) -> None:
    generate(tmp_path / "silent", SMALL)
    size = ["--frames", "30", "--size", "48x36", "--classes", "2", "--groups", "2", "--clips-per-group", "1"]
    done = CliRunner().invoke(app, ["demo-videos", str(tmp_path / "loud"), "--audio", *size])
    assert done.exit_code == 0, done.output
    marks = [json.loads((tmp_path / name / "demo.json").read_text()) for name in ("silent", "loud")]
    assert "audio" not in marks[0] and marks[1] == {**marks[0], "audio": True}
    name = ClipName("FigureEight", 2, 1)
    with av.open(str(tmp_path / "silent" / name.path)) as file:
        assert not file.streams.audio
    with av.open(str(tmp_path / "loud" / name.path)) as file:
        stream = file.streams.audio[0]
        assert (stream.rate, stream.channels) == (RATE, 1)
        samples = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(stream)])
    assert np.array_equal(samples, clip_sound(name, replace(SMALL, audio=True))) and len(samples) == 30 * RATE // 25
    pictures = []
    for folder in ("silent", "loud"):
        with open_video(tmp_path / folder / name.path) as video:
            pictures.append(np.stack(list(video.frames())))
    assert np.array_equal(pictures[0], pictures[1])


def test_it_clicks_once_for_every_angle_that_is_passed() -> None:
    seconds = np.arange(RATE) / RATE
    angle = 0.1 + 1.1 * np.sin(2 * np.pi * seconds)
    passed = 0
    for before, after in pairwise(angle):
        passed += int(before // CLICK_ANGLE != after // CLICK_ANGLE)
    sound = clicks(angle)
    loud = np.abs(sound) > 0.3
    starts = np.flatnonzero(loud & ~np.concatenate([np.zeros(160, bool), loud[:-160]]))  # none in the 10 ms before
    assert passed > 10 and 0.7 * passed <= len(np.flatnonzero(np.diff(starts, prepend=-1000) > 160)) <= passed
    assert np.abs(clicks(np.full(1000, 0.3))).max() == 0


def test_a_still_body_is_silent_and_a_body_is_as_loud_as_it_is_fast() -> None:
    still = np.tile([0.2, -0.3, 1.0, 0.5], (30, 1))
    assert np.abs(body_sound(still, 25, 30 * RATE // 25, pitch=300, timbre=TIMBRE)).max() == 0
    (bounce,) = clip_trajectory(ClipName("Bounce", 1, 1), SMALL).bodies
    sound = body_sound(bounce, 25, 30 * RATE // 25, pitch=300, timbre=TIMBRE)
    loudness = np.sqrt((sound.reshape(30, -1) ** 2).mean(1))
    speed = np.hypot(np.gradient(bounce[:, 0]), np.gradient(bounce[:, 1]))
    assert np.corrcoef(loudness[1:-1], np.minimum(speed * 25 / 2, 1)[1:-1])[0, 1] > 0.8


def test_the_place_is_shared_by_a_group_and_the_pitch_is_the_clips_own() -> None:
    config = replace(SMALL, audio=True, difficulty=1.0, clips_per_group=2, num_frames=60)
    spectra = {}
    for group in (1, 2):
        for clip in (1, 2):
            sound = clip_sound(ClipName("Pulse", group, clip), config).astype(float)
            power = np.abs(np.fft.rfft(sound)) ** 2
            spectra[group, clip] = np.log([part.mean() for part in np.array_split(power, 40)])

    def distance(one: tuple[int, int], other: tuple[int, int]) -> float:
        return float(np.abs(spectra[one] - spectra[other]).mean())

    assert distance((1, 1), (1, 2)) < distance((1, 1), (2, 1))
    first, second = (clip_sound(ClipName("Pulse", 1, clip), config) for clip in (1, 2))
    assert not np.array_equal(first, second)
    assert np.array_equal(first, clip_sound(ClipName("Pulse", 1, 1), config))
