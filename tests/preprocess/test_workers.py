"""Worker processes: a crash costs one video, not the run."""

import os
import time
from pathlib import Path

import pytest

from covid_cmsf.clips.records import StoreInfo
from preprocess.config import WorkerConfig
from preprocess.workers import Job, WorkerMessage, WorkerPool
from tests.factories import moving_square, write_video

INFO = StoreInfo(modalities=("rgb",), short_edge=0, max_frames=0, quality=18)


def wait_for_end(pool: WorkerPool) -> WorkerMessage:
    end = time.monotonic() + 300
    while time.monotonic() < end:
        for message in pool.poll(timeout=0.2):
            if not message.num_frames:
                return message
    pytest.fail("the worker said nothing for five minutes")


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_video_skipped(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.avi", moving_square(40))
    os.mkfifo(tmp_path / "fifo")
    pool = WorkerPool([WorkerConfig(INFO, "av")], time_limit=3600)
    try:
        while not pool._workers[0].ready:
            pool.poll(timeout=1)
        pool.submit(Job("a", video, {"rgb": tmp_path / "fifo"}))  # it waits for a reader, who never comes
        assert pool.busy and pool.idle == 0
        pool._workers[0].process.kill()
        message = wait_for_end(pool)
        assert message.failure is not None and message.failure[0] == "worker" and "signal 9" in message.failure[1]
        pool.submit(Job("a", video, {"rgb": tmp_path / "rgb.mp4"}))
        assert wait_for_end(pool).metadata.num_frames == 40
    finally:
        pool.close()


def test_a_full_disk_is_not_the_videos_fault(tmp_path: Path) -> None:
    video = write_video(tmp_path / "a.avi", moving_square(400))
    pool = WorkerPool([WorkerConfig(INFO, "av")], time_limit=60)
    try:
        pool.submit(Job("a", video, {"rgb": Path("/dev/full")}))
        message = wait_for_end(pool)
        assert message.fatal is not None and "full" in message.fatal
    finally:
        pool.close()
