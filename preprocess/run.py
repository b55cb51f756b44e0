"""The whole run: videos of a collection -> clip store, with any number of workers, processes and machines.

Order of events for a video: lease, convert to temporary files, still mine?, rename to the final names, record in the
ledger, release. A kill between any two of these loses nothing but the open video.
"""

import errno
import logging
import os
import shutil
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from covid_cmsf import atomic
from covid_cmsf.clips.manifest import ClipRecord, Failure
from covid_cmsf.clips.store_info import StoreInfo, clip_path
from preprocess.layouts import Collection, Video
from preprocess.leases import Heart, Lease, Leases
from preprocess.ledger import Ledger, key_of
from preprocess.progress import RunProgress
from preprocess.settings import Setup
from preprocess.tables import adopt_tables, check_labels, write_tables
from preprocess.workers import DISK_FULL, Job, Report, WorkerPool

logger = logging.getLogger(__name__)
WORK = ".work"
POLL_SECONDS = 0.2
BAD_NAME = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR)


@dataclass
class Summary:
    """How a run ended. `failures` are those of the whole store."""

    num_videos: int = 0  # that this run was responsible for
    num_done: int = 0  # by this run
    num_before: int = 0  # done or set aside before it began
    num_elsewhere: int = 0  # by other processes meanwhile
    num_frames: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    failures: list[Failure] = field(default_factory=list)


class Run:
    """One process's share of the work on a store."""

    def __init__(self, store: Path, collection: Collection, info: StoreInfo, *, lease_seconds: float = 60.0) -> None:
        self._store, self._collection, self._info = store, collection, info
        self._tmp = store / WORK / "tmp"
        self._ledger = Ledger(store / WORK / "ledger")
        self._leases = Leases(store / WORK / "leases", seconds=lease_seconds)
        self._lease_seconds = lease_seconds
        self._reserve = store / WORK / "reserve"  # room for the tables when the disk is full
        self._open: dict[str, tuple[Video, Lease]] = {}
        self._retry: set[str] = set()  # set aside before, and to be tried again
        self._crashed: set[str] = set()  # whose worker died once
        self._summary = Summary()

    def run(self, videos: list[Video], setups: list[Setup], *, time_limit: float, retry_failed: bool) -> Summary:
        """Converts `videos` (all of the collection, or a shard) and brings the store's tables up to date."""
        summary, failed = self._summary, None
        with Heart(self._leases, every=self._lease_seconds / 6):
            try:
                self._adopt_tables()
                check_labels(self._ledger, self._collection)
                self._write_tables()  # so that the store can be opened from now on, whatever happens
                self._reserve.write_bytes(bytes(16_384 + 512 * len(self._collection.videos)))
                pending = self._pending(videos, retry_failed=retry_failed)
                summary.num_videos, summary.num_before = len(videos), len(videos) - len(pending)
                if pending:
                    self._convert(pending, setups[: len(pending)], time_limit)
            except KeyboardInterrupt:
                summary.interrupted = True
            except OSError as error:
                failed = error
            self._end(failed)
        return summary

    def _convert(self, pending: deque[Video], setups: list[Setup], time_limit: float) -> None:
        """Starts the workers, keeps them busy, and leaves nothing open behind."""
        summary = self._summary
        progress = RunProgress(total=summary.num_videos, done=summary.num_before)
        pool = WorkerPool(setups, time_limit=time_limit)
        try:
            with progress.shown():
                self._work(pending, pool, progress)
        finally:
            pool.close()
            for video, lease in list(self._open.values()):
                self._drop(video, lease)
            summary.num_frames, summary.seconds = progress.frames, progress.seconds

    def _end(self, failed: OSError | None) -> None:
        """Brings the tables up to date, then raises what stopped the run, if anything did."""
        try:
            self._reserve.unlink(missing_ok=True)
            self._write_tables()
        except OSError as error:
            failed = failed or error
            logger.warning("the tables could not be brought up to date (%s); the next run does it", error)
        if failed is not None and failed.errno in DISK_FULL:
            raise OSError(
                failed.errno,
                f"the disk is full. {self._store} is valid as it is; free some space and run the same command: "
                "it continues where it stopped",
            ) from failed
        if failed is not None:
            raise failed

    def _pending(self, videos: list[Video], *, retry_failed: bool) -> deque[Video]:
        outcomes = {outcome.video_id: outcome for outcome in self._ledger.outcomes()}
        if retry_failed:
            self._retry = {video_id for video_id, outcome in outcomes.items() if isinstance(outcome, Failure)}
        settled = outcomes.keys() - self._retry
        pending = deque(video for video in videos if video.video_id not in settled)
        # Processes that start together begin at different places, so they rarely want the same video.
        pending.rotate(os.getpid() * 2654435761 % max(1, len(pending)))
        return pending

    def _adopt_tables(self) -> None:
        mark = self._store / WORK / "adopted"
        if not mark.exists():
            with self._alone():
                adopt_tables(self._store, self._ledger, mark)

    def _work(self, pending: deque[Video], pool: WorkerPool, progress: RunProgress) -> None:
        """Until every video has an outcome: keep the workers busy, and watch the videos that others hold."""
        videos = {video.video_id: video for video in pending}
        while pending or pool.busy:
            for _ in range(len(pending)):
                if not pool.idle:
                    break
                video = pending.popleft()
                if self._settled(video):
                    self._summary.num_elsewhere += 1
                    progress.add(videos=1)
                elif not self._try_start(video, pool):
                    pending.append(video)
            for report in pool.reports(timeout=POLL_SECONDS):
                if report.frames:
                    progress.add(frames=report.frames)
                elif self._finish(report):
                    progress.add(videos=1)
                else:
                    assert report.job is not None
                    pending.append(videos[report.job.video_id])

    def _try_start(self, video: Video, pool: WorkerPool) -> bool:
        lease = self._leases.claim(key_of(video.video_id))
        if lease is None:
            return False
        if lease.superseded:
            logger.info("taking over %s from a process that died", video.video_id)
            shutil.rmtree(self._tmp / lease.superseded, ignore_errors=True)
        if self._settled(video):  # between the look and the claim
            self._leases.release(lease)
            return False
        if video.video_id in self._retry:  # under the lease, so that nobody's new record is lost
            self._ledger.forget(video.video_id)
            self._retry.discard(video.video_id)
        folder = self._tmp / lease.token
        folder.mkdir(parents=True)
        targets: dict[str, Path] = {modality: folder / f"{modality}.mp4" for modality in self._info.modalities}
        self._open[video.video_id] = video, lease
        pool.give(Job(video.video_id, video.path, targets))
        return True

    def _settled(self, video: Video) -> bool:
        """Whether nothing is left to do for this video."""
        outcome = self._ledger.outcome(video.video_id)
        return outcome is not None and not (isinstance(outcome, Failure) and video.video_id in self._retry)

    def _finish(self, report: Report) -> bool:
        """Records the end of a job; False if the video must be looked at again."""
        if report.fatal is not None:
            raise OSError(DISK_FULL[0], report.fatal) if report.disk_full else RuntimeError(report.fatal)
        assert report.job is not None
        video, lease = self._open[report.job.video_id]
        mine, again = self._leases.still_mine(lease), False
        if not mine:
            logger.warning("%s was taken over by another process while this one was silent", video.video_id)
        elif report.failure is None:
            self._publish(video, report)
        elif report.failure[0] == "worker" and video.video_id not in self._crashed:
            self._crashed.add(video.video_id)  # perhaps not its fault: memory, or an impatient administrator
            again = True
        else:
            self._set_aside(video, *report.failure)
        self._drop(video, lease)
        return mine and not again

    def _publish(self, video: Video, report: Report) -> None:
        facts = report.facts
        if facts.num_frames < 0.9 * facts.stated_frames and not self._info.max_frames:
            logger.warning(
                "%s: the header says %d frames, %d could be read",
                video.video_id, facts.stated_frames, facts.num_frames,
            )  # fmt: skip
        assert report.job is not None
        finals = {modality: clip_path(self._store, modality, video.video_id) for modality in report.job.targets}
        try:
            for modality, temporary in report.job.targets.items():
                finals[modality].parent.mkdir(parents=True, exist_ok=True)
                atomic.publish(temporary, finals[modality])
        except OSError as error:
            if error.errno in BAD_NAME:
                return self._set_aside(video, "store", f"its name does not fit into the store: {error.strerror}")
            raise
        known = {key: value for key, value in asdict(facts).items() if key != "stated_frames"}
        record = ClipRecord(video.video_id, video.source, video.class_name, video.label, **known)
        try:
            self._summary.num_done += self._ledger.write(record)
        except OSError:
            for final in finals.values():
                final.unlink(missing_ok=True)  # a file that no record knows is an orphan
            raise
        logger.debug("done: %s", video.video_id, extra={"fields": asdict(record)})

    def _set_aside(self, video: Video, stage: str, reason: str) -> None:
        self._ledger.write(Failure(video.video_id, stage, reason))
        fields = {"video_id": video.video_id, "stage": stage, "reason": reason}
        logger.warning("set aside %s: %s: %s", video.video_id, stage, reason, extra={"fields": fields})

    def _drop(self, video: Video, lease: Lease) -> None:
        """Removes the temporary files and gives the lease back."""
        shutil.rmtree(self._tmp / lease.token, ignore_errors=True)
        self._leases.release(lease)
        self._open.pop(video.video_id, None)

    def _write_tables(self) -> None:
        """manifest.csv, failures.csv and splits/ from the ledger, by one process at a time."""
        with self._alone():
            self._summary.failures = write_tables(self._store, self._ledger, self._collection)
            self._sweep()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process at a time, of all that work on the store, is in such a block."""
        while (lease := self._leases.claim("tables")) is None:
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self._leases.release(lease)

    def _sweep(self) -> None:
        """Removes what processes left that were killed after recording a video: nobody will ask for it again."""
        folders = list(self._tmp.glob("*"))  # before the leases: a folder is made after its lease, and goes before it
        living = self._leases.sweep()
        for folder in folders:
            if folder.name not in living:
                shutil.rmtree(folder, ignore_errors=True)
        for table in [*self._store.glob(".*.tmp"), *(self._store / "splits").glob(".*.tmp")]:
            table.unlink(missing_ok=True)  # half a table; only the holder of this lease writes tables
