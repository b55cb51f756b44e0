"""A preprocessing run: convert the videos of a collection with any number of workers, processes and machines.

Steps per video: acquire its lease, convert to temporary files, check that the lease is still held, rename the files,
record the outcome in the ledger, release the lease. A kill between any two steps loses at most this video's work.
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

from covid_cmsf import files
from covid_cmsf.clips.cuts import cut_times
from covid_cmsf.clips.records import ClipRecord, Failure, StoreInfo, clip_path
from preprocess.config import WorkerConfig
from preprocess.layouts import Collection, Video
from preprocess.leases import Heartbeat, Lease, Leases
from preprocess.progress import RunProgress
from preprocess.retry import RetryQueue
from preprocess.sources import changed_sources
from preprocess.store import Ledger, check_label_conflicts, import_tables, video_key, write_tables
from preprocess.workers import DISK_FULL_ERRNOS, Job, WorkerMessage, WorkerPool

logger = logging.getLogger(__name__)
WORK_DIR = ".work"
POLL_SECONDS = 0.2
INVALID_NAME_ERRNOS = (errno.ENAMETOOLONG, errno.ENOTDIR, errno.EISDIR)


@dataclass
class RunSummary:
    """The result of a run. `failures` are those of the whole store."""

    num_videos: int = 0  # in this run
    num_done: int = 0  # converted by this run
    num_already_done: int = 0  # converted or skipped before this run
    num_done_by_others: int = 0  # converted by other processes during this run
    num_frames: int = 0
    seconds: float = 0.0
    interrupted: bool = False
    failures: list[Failure] = field(default_factory=list)


class PreprocessRun:
    """One process that converts videos into a store, possibly together with others."""

    def __init__(self, store: Path, collection: Collection, info: StoreInfo, *, lease_seconds: float = 60.0) -> None:
        self._store, self._collection, self._info = store, collection, info
        self._tmp_dir = store / WORK_DIR / "tmp"
        self._ledger = Ledger(store / WORK_DIR / "ledger")
        self._leases = Leases(store / WORK_DIR / "leases", seconds=lease_seconds)
        self._lease_seconds = lease_seconds
        self._reserved_file = store / WORK_DIR / "reserve"  # disk space for the tables, freed when the disk is full
        self._in_progress: dict[str, tuple[Video, Lease]] = {}
        self._redo: dict[str, ClipRecord | Failure] = {}  # outcomes to replace: retried, or of a changed source
        self._stale_files: set[str] = set()  # videos with files of a source that has changed
        self._crashed_once: set[str] = set()  # videos whose worker died once
        self._summary = RunSummary()

    def run(
        self, videos: list[Video], worker_configs: list[WorkerConfig], *, time_limit: float, retry_failed: bool
    ) -> RunSummary:
        """Convert `videos` (all of the collection, or a shard) and update the store's tables."""
        summary, failure_cause = self._summary, None
        with Heartbeat(self._leases, interval=self._lease_seconds / 6):
            try:
                self._import_tables()
                check_label_conflicts(self._ledger, self._collection)
                self._write_tables()  # from now on the store can be opened
                self._reserved_file.write_bytes(bytes(16_384 + 512 * len(self._collection.videos)))
                pending = self._pending(videos, retry_failed=retry_failed)
                summary.num_videos, summary.num_already_done = len(videos), len(videos) - len(pending)
                if pending:
                    self._convert_pending(pending, worker_configs[: len(pending)], time_limit)
            except KeyboardInterrupt:
                summary.interrupted = True
            except OSError as error:
                failure_cause = error
            self._finalize(failure_cause)
        return summary

    def _convert_pending(self, pending: deque[Video], worker_configs: list[WorkerConfig], time_limit: float) -> None:
        """Convert the pending videos with a pool of workers; release all leases at the end."""
        summary = self._summary
        progress = RunProgress(total=summary.num_videos, done=summary.num_already_done)
        pool = WorkerPool(worker_configs, time_limit=time_limit)
        try:
            with progress.display():
                self._process_pending(pending, pool, progress)
        finally:
            pool.close()
            for video, lease in list(self._in_progress.values()):
                self._release(video, lease)
            summary.num_frames, summary.seconds = progress.frames, progress.seconds

    def _finalize(self, failure_cause: OSError | None) -> None:
        """Update the tables, then raise the error that stopped the run, if any."""
        try:
            self._reserved_file.unlink(missing_ok=True)
            self._write_tables()
        except OSError as error:
            failure_cause = failure_cause or error
            logger.warning("the tables could not be updated (%s); the next run updates them", error)
        if failure_cause is not None and failure_cause.errno in DISK_FULL_ERRNOS:
            raise OSError(
                failure_cause.errno,
                f"the disk is full. {self._store} is valid; free some space and run the same command to resume",
            ) from failure_cause
        if failure_cause is not None:
            raise failure_cause

    def _pending(self, videos: list[Video], *, retry_failed: bool) -> deque[Video]:
        outcomes = {outcome.video_id: outcome for outcome in self._ledger.outcomes()}
        if retry_failed:
            self._redo |= {video_id: outcome for video_id, outcome in outcomes.items() if isinstance(outcome, Failure)}
        for video in changed_sources(videos, outcomes):
            logger.warning("%s was changed since it was converted: converting it again", video.describe())
            self._redo[video.video_id] = outcomes[video.video_id]
        done_ids = outcomes.keys() - self._redo.keys()
        pending = deque(video for video in videos if video.video_id not in done_ids)
        # Processes that start together begin with different videos, so they rarely compete for a lease.
        pending.rotate(os.getpid() * 2654435761 % max(1, len(pending)))
        return pending

    def _import_tables(self) -> None:
        marker = self._store / WORK_DIR / "adopted"
        if not marker.exists():
            with self._exclusive_lease():
                import_tables(self._store, self._ledger, marker)

    def _process_pending(self, pending: deque[Video], pool: WorkerPool, progress: RunProgress) -> None:
        """Give videos to idle workers until every video has an outcome; check those that other processes hold."""
        videos = {video.video_id: video for video in pending}
        held_elsewhere: RetryQueue[Video] = RetryQueue()
        while pending or held_elsewhere or pool.busy:
            pending.extend(held_elsewhere.due(time.monotonic()))
            for _ in range(len(pending)):
                if not pool.idle:
                    break
                video = pending.popleft()
                if self._is_done(video):
                    self._summary.num_done_by_others += 1
                    progress.add(videos=1)
                elif not self._try_start(video, pool):
                    held_elsewhere.add(video.video_id, video, time.monotonic())
            for message in pool.poll(timeout=POLL_SECONDS):
                if message.num_frames:
                    progress.add(frames=message.num_frames)
                elif self._handle_message(message):
                    progress.add(videos=1)
                else:
                    assert message.job is not None
                    pending.append(videos[message.job.video_id])

    def _try_start(self, video: Video, pool: WorkerPool) -> bool:
        lease = self._leases.claim(video_key(video.video_id))
        if lease is None:
            return False
        if lease.superseded_token:
            logger.info("taking over %s from a dead process", video.video_id)
            shutil.rmtree(self._tmp_dir / lease.superseded_token, ignore_errors=True)
        if self._is_done(video):  # between the last check and the claim
            self._leases.release(lease)
            return False
        if (replaced := self._redo.pop(video.video_id, None)) is not None:
            self._ledger.remove(video.video_id)  # under the lease: no other process's new record is lost
            if isinstance(replaced, ClipRecord):
                self._stale_files.add(video.video_id)
        folder = self._tmp_dir / lease.token
        folder.mkdir(parents=True)
        targets: dict[str, Path] = {modality: folder / f"{modality}.mp4" for modality in self._info.modalities}
        self._in_progress[video.video_id] = video, lease
        pool.submit(Job(video.video_id, video.path, targets, cut_times(video), video.member))
        return True

    def _is_done(self, video: Video) -> bool:
        """Return whether the video has an outcome that is not to be replaced."""
        outcome = self._ledger.outcome(video.video_id)
        return outcome is not None and outcome != self._redo.get(video.video_id)

    def _handle_message(self, message: WorkerMessage) -> bool:
        """Record the outcome of a job; return False if the video must be tried again."""
        if message.fatal is not None:
            raise OSError(DISK_FULL_ERRNOS[0], message.fatal) if message.disk_full else RuntimeError(message.fatal)
        assert message.job is not None
        video, lease = self._in_progress[message.job.video_id]
        is_held, retry = self._leases.is_held(lease), False
        if not is_held:
            logger.warning("%s was taken over by another process: this one sent no heartbeat in time", video.video_id)
        elif message.failure is None:
            self._publish(video, lease, message)
        elif message.failure[0] == "worker" and video.video_id not in self._crashed_once:
            self._crashed_once.add(video.video_id)  # perhaps not the video's fault: out of memory, or a manual kill
            retry = True
        else:
            self._record_failure(video, *message.failure)
        self._release(video, lease)
        return is_held and not retry

    def _publish(self, video: Video, lease: Lease, message: WorkerMessage) -> None:
        metadata = message.metadata
        if metadata.num_frames < 0.9 * metadata.header_frames and not self._info.max_frames:
            logger.warning(
                "%s: the header says %d frames, %d could be read",
                video.video_id, metadata.header_frames, metadata.num_frames,
            )  # fmt: skip
        assert message.job is not None
        final_paths = {modality: clip_path(self._store, modality, video.video_id) for modality in message.job.targets}
        try:
            for modality, temporary in message.job.targets.items():
                final_paths[modality].parent.mkdir(parents=True, exist_ok=True)
                files.fsync_and_rename(temporary, final_paths[modality])
        except OSError as error:
            if error.errno in INVALID_NAME_ERRNOS:
                return self._record_failure(video, "store", f"its name can't be a file name: {error.strerror}")
            raise
        record_fields = {key: value for key, value in asdict(metadata).items() if key != "header_frames"}
        record_fields |= {"cut_start": video.cut_start, "cut_end": video.cut_end}
        record = ClipRecord(video.video_id, video.source, video.class_name, video.label, **record_fields)
        try:
            self._summary.num_done += self._ledger.write(record)
        except OSError:
            # Leave no file without a record; but another process that took over may have recorded these very files.
            if self._leases.is_held(lease) and self._ledger.outcome(video.video_id) is None:
                for path in final_paths.values():
                    path.unlink(missing_ok=True)
            raise
        logger.debug("done: %s", video.video_id, extra={"fields": asdict(record)})

    def _record_failure(self, video: Video, stage: str, reason: str) -> None:
        self._ledger.write(Failure(video.video_id, stage, reason))
        if video.video_id in self._stale_files:  # made of an earlier source of this name; no file is without a record
            for modality in self._info.modalities:
                clip_path(self._store, modality, video.video_id).unlink(missing_ok=True)
        log_fields = {"video_id": video.video_id, "stage": stage, "reason": reason}
        logger.warning("skipped %s: %s: %s", video.video_id, stage, reason, extra={"fields": log_fields})

    def _release(self, video: Video, lease: Lease) -> None:
        """Remove the temporary files and release the lease."""
        shutil.rmtree(self._tmp_dir / lease.token, ignore_errors=True)
        self._leases.release(lease)
        self._in_progress.pop(video.video_id, None)

    def _write_tables(self) -> None:
        """Write manifest.csv, failures.csv and splits/ from the ledger, one process at a time."""
        self._ledger.outcomes()  # read before others have to wait: under the lease only what is new since
        with self._exclusive_lease():
            self._summary.failures = write_tables(self._store, self._ledger, self._collection)
            self._remove_leftovers()

    @contextmanager
    def _exclusive_lease(self) -> Iterator[None]:
        """Hold the lease `tables` while the block runs: one process at a time, of all that work on the store."""
        while (lease := self._leases.claim("tables")) is None:
            time.sleep(POLL_SECONDS)
        try:
            yield
        finally:
            self._leases.release(lease)

    def _remove_leftovers(self) -> None:
        """Remove temporary files of processes that were killed."""
        # List folders before leases: a folder is created after its lease and removed before it.
        folders = list(self._tmp_dir.glob("*"))
        alive_tokens = self._leases.remove_stale()
        for folder in folders:
            if folder.name not in alive_tokens:
                shutil.rmtree(folder, ignore_errors=True)
        for leftover in [*self._store.glob(".*.tmp"), *(self._store / "splits").glob(".*.tmp")]:
            leftover.unlink(missing_ok=True)  # an unfinished table; only the holder of this lease writes tables
