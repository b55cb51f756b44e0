"""`preprocess --fps`: frames nearest in time to a fixed rate, also of files whose own rate varies."""

import math
from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.resampling import resample
from covid_cmsf.video_files import VideoFiles
from tests.factories import moving_square, write_video
from tests.preprocess.commands import preprocess

RGB = ("--modalities", "rgb")


def resample_slowly(times: list[float], fps: float, start: float, end: float, last_duration: float) -> list[int]:
    """For every moment up to half a frame before the end look at all frames; the earlier of two equally near ones."""
    chosen: list[int] = []
    stop = min(end, times[-1] + last_duration)
    for number in range(10_000):
        moment = start + number / fps
        if moment > stop - (0.5 - 1e-6) / fps and chosen:
            break
        distances = [abs(time - moment) for time in times]
        chosen.append(next(i for i, one in enumerate(distances) if one <= min(distances) + 1e-6 / fps))
    return chosen


@pytest.mark.parametrize("seed", range(20))
def test_resampling_takes_the_nearest_frame_of_any_times(seed: int) -> None:
    rng = np.random.default_rng(seed)
    times = np.concatenate([[0.0], rng.uniform(0.001, 0.4, 30).cumsum()])
    fps, start, end = float(rng.uniform(1, 60)), float(rng.uniform(0, 2)), float(rng.choice([math.inf, 3.3]))
    timed = [(i, time) for i, time in enumerate(times.tolist()) if start <= time < end]
    found = list(resample(timed, fps=fps, start=start, end=end, last_duration=0.2))
    first = timed[0][0]
    slow = resample_slowly([time for _, time in timed], fps, start, end, 0.2)
    assert found == [first + i for i in slow] and found


def test_the_same_rate_keeps_every_frame_also_with_times_in_milliseconds() -> None:
    times = [round(1000 * i / 30) / 1000 for i in range(300)]
    assert list(resample(enumerate_times(times), fps=30, last_duration=1 / 30)) == list(range(300))
    assert list(resample(enumerate_times(times), fps=15, last_duration=1 / 30)) == list(range(0, 300, 2))
    assert list(resample(enumerate_times([0.0, 1 / 30]), fps=60, last_duration=1 / 30)) == [0, 0, 1, 1]


def enumerate_times(times: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(times))


def test_a_jump_of_the_time_stamps_is_refused_rather_than_filled() -> None:
    with pytest.raises(ValueError, match="jump by 9000 s"):
        list(resample([(0, 0.0), (1, 9000.0)], fps=30, last_duration=0.04))


def test_a_store_of_a_fixed_rate_has_the_frames_of_these_seconds(tmp_path: Path) -> None:
    frames = moving_square(30, seed=1)
    times = [*range(10), *range(20, 60, 2)]  # of 1/25 s: a gap, then half the rate
    write_video(tmp_path / "videos" / "varies.mp4", frames, codec="libx264", times=times)
    write_video(tmp_path / "videos" / "steady.avi", frames, fps=30)
    done = preprocess(tmp_path / "videos", tmp_path / "clips", "--fps", "12.5", *RGB, layout="flat")
    assert done.returncode == 0, done.stderr
    store = ClipStore.open(tmp_path / "clips")
    steady, varies = store.records
    assert store.info.fps == 12.5 and steady.fps == varies.fps == 12.5
    assert steady.num_frames == math.ceil(12.5 * 1.0)
    with open_video(tmp_path / "videos" / "varies.mp4") as reader:
        native = list(reader.frames())
        duration = float(1 / reader.fps)
    seconds = [time / 25 for time in times]
    expected = resample_slowly(seconds, 12.5, 0.0, math.inf, duration)
    assert varies.num_frames == len(expected)
    stored = store.read(varies, "rgb", range(varies.num_frames)).permute(0, 2, 3, 1).numpy()
    for frame, number in zip(stored, expected, strict=True):
        errors = [np.abs(frame.astype(int) - other).mean() for other in native]
        assert int(np.argmin(errors)) == number, "the frame of that second"
    other = preprocess(tmp_path / "videos", tmp_path / "clips", "--fps", "10", *RGB, layout="flat")
    assert other.returncode == 2 and "fps is 12.5 in the store, 10.0 now" in " ".join(other.stderr.split())
    own = preprocess(tmp_path / "videos", tmp_path / "clips", *RGB, layout="flat")
    assert own.returncode == 2 and "fps is 12.5 in the store" in " ".join(own.stderr.split())


def test_a_cut_begins_at_its_start_whatever_the_rate(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", moving_square(50), codec="libx264")
    with open_video(tmp_path / "a.mp4") as reader:
        native = list(reader.frames())
    with open_video(tmp_path / "a.mp4") as reader:
        found = list(reader.frames(start=0.5, end=1.5, fps=10))
    assert len(found) == 10
    times = [i / 25 for i in range(50) if 0.5 <= i / 25 < 1.5]
    for frame, number in zip(found, resample_slowly(times, 10, 0.5, 1.5, 0.04), strict=True):
        assert np.array_equal(frame, native[13 + number])


def test_decord_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    pytest.importorskip("decord")
    write_video(tmp_path / "videos" / "a.avi", moving_square(5))
    done = preprocess(
        tmp_path / "videos", tmp_path / "clips", "--fps", "10", "--decoder", "decord", *RGB, layout="flat"
    )
    assert done.returncode == 2 and not (tmp_path / "clips").exists()


def test_a_video_file_is_read_at_the_rate_of_the_store(tmp_path: Path) -> None:
    path = write_video(tmp_path / "videos" / "a.avi", moving_square(50))
    done = preprocess(tmp_path / "videos", tmp_path / "clips", "--fps", "5", layout="flat")
    assert done.returncode == 0, done.stderr
    store = ClipStore.open(tmp_path / "clips")
    clips = VideoFiles([path], store.info)
    assert (clips.records[0].fps, clips.records[0].num_frames) == (5.0, store.records[0].num_frames) == (5.0, 10)
    difference = clips.read(clips.records[0], "rgb", [3]).int() - store.read(store.records[0], "rgb", [3]).int()
    assert difference.abs().float().mean() < 5


@pytest.mark.real
def test_real_clips_last_as_long_at_another_rate(tmp_path: Path, real_videos: Path) -> None:
    for path in sorted(real_videos.rglob("*.avi"))[::30]:
        with open_video(path) as reader:
            num_native, rate = sum(1 for _ in reader.frames()), float(reader.fps)
        for fps in (8.0, 30.0):
            with open_video(path) as reader:
                count = sum(1 for _ in reader.frames(fps=fps))
            assert abs(count / fps - num_native / rate) <= 1 / fps + 2 / rate
