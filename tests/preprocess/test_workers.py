"""Worker processes: a crash costs one video, not the run."""

import time
from pathlib import Path

import pytest

from covid_cmsf.clips.store_info import StoreInfo
from preprocess.settings import Setup
from preprocess.workers import Job, Report, WorkerPool
from tests.videos import moving_square, write_video

INFO = StoreInfo(modalities=("rgb",), short_edge=0, max_frames=0, quality=18)


def outcome(pool: WorkerPool) -> Report:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for report in pool.reports(timeout=0.2):
            if not report.frames:
                return report
    pytest.fail("the worker said nothing for a minute")


def test_a_killed_worker_is_replaced_and_its_video_set_aside(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.avi", moving_square(400))
    pool = WorkerPool([Setup(INFO, "av")], time_limit=60)
    job = Job("a", video, {"rgb": tmp_path / "rgb.mp4"})
    try:
        pool.give(job)
        assert pool.busy and pool.idle == 0
        while not any(report.frames for report in pool.reports(timeout=1)):
            pass
        pool._workers[0].process.kill()
        report = outcome(pool)
        assert report.failure is not None and report.failure[0] == "worker" and "signal 9" in report.failure[1]
        pool.give(job)
        assert outcome(pool).facts.num_frames == 400
    finally:
        pool.close()


def test_a_full_disk_is_not_the_videos_fault(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.avi", moving_square(400))
    pool = WorkerPool([Setup(INFO, "av")], time_limit=60)
    try:
        pool.give(Job("a", video, {"rgb": Path("/dev/full")}))
        report = outcome(pool)
        assert report.fatal is not None and "full" in report.fatal
    finally:
        pool.close()
