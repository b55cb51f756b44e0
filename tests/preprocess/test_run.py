"""The whole run: continues after kills, divides work among processes, sets broken videos aside."""

import errno
import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from covid_cmsf import exit_codes
from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.maintenance import check_store, merge_stores
from covid_cmsf.clips.records import ClipRecord, Failure, StoreInfo, read_failures
from preprocess import run as run_module
from preprocess.config import WorkerConfig
from preprocess.layouts import scan_collection
from preprocess.leases import Lease, Leases
from preprocess.progress import RunProgress
from preprocess.run import PreprocessRun
from preprocess.store import Ledger, prepare_store, video_key
from tests.factories import make_ucf, moving_square, write_video
from tests.preprocess.commands import command, count_done, hash_tree, preprocess, run_cli

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_ucf(tmp_path_factory.mktemp("ucf"), classes=2, groups=4, num_frames=20)


@pytest.fixture(scope="module")
def undisturbed(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "clips"
    result = preprocess(videos, out)
    assert result.returncode == exit_codes.SUCCESS, result.stderr
    return out


@contextmanager
def unfinishable(out: Path) -> Iterator[None]:
    """Hold the lease of one video: a run of the block can't finish before it is stopped, however quick it is."""
    leases = Leases(out / ".work" / "leases", seconds=1e9)
    lease = leases.claim(video_key("bowling/v_bowling_g04_c01"))
    assert lease is not None
    yield
    leases.release(lease)


@pytest.mark.slow
def test_a_finished_store_is_whole_and_running_again_changes_nothing(videos: Path, undisturbed: Path) -> None:
    store = ClipStore.open(undisturbed)
    assert len(store.records) == 8 and not store.failures and check_store(store) == []
    assert set(store.splits) == {"1", "2", "3"}
    before = {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*.mp4")}
    assert preprocess(videos, undisturbed).returncode == exit_codes.SUCCESS
    assert {path: path.stat().st_mtime_ns for path in undisturbed.rglob("*.mp4")} == before
    assert list((undisturbed / ".work" / "tmp").iterdir()) == []
    assert list((undisturbed / ".work" / "leases").iterdir()) == []


@pytest.mark.slow
def test_killed_at_any_moment_it_continues_to_the_same_bytes(videos: Path, undisturbed: Path, tmp_path: Path) -> None:
    out, rng = tmp_path / "clips", random.Random(0)
    with unfinishable(out):
        for attempt in range(9):
            process = subprocess.Popen(command(videos, out), stderr=subprocess.DEVNULL, start_new_session=True)
            pattern = (".work/leases/*.*", ".work/tmp/*/*.mp4", ".work/ledger/*/*.json")[attempt % 3]
            before = set(out.glob(pattern))
            while set(out.glob(pattern)) <= before and len(list(out.glob(".work/ledger/*/*.json"))) < 7:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.02))
            process.kill()  # SIGKILL to the parent only: its worker must notice and die
            assert process.wait() == -signal.SIGKILL
    assert preprocess(videos, out).returncode == exit_codes.SUCCESS
    assert hash_tree(out) == hash_tree(undisturbed)
    assert list((out / ".work" / "tmp").iterdir()) == []


def changes(out: Path) -> set[Path]:
    return {*out.glob(".work/leases/*"), *out.glob(".work/ledger/*/*.json")}


@pytest.mark.slow
def test_several_processes_with_kills_do_each_video_exactly_once(
    videos: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out, rng = tmp_path / "clips", random.Random(0)
    run = command(videos, out, "--lease-seconds", "1e9")  # a process that is gone is noticed without waiting for it
    with unfinishable(out):
        processes = [subprocess.Popen(run, stderr=subprocess.DEVNULL) for _ in range(3)]
        seen: set[Path] = set(out.glob(".work/leases/*"))
        for number in range(6):  # each time a video is claimed or recorded, one of the three is killed and replaced
            while not (new := changes(out) - seen) and len(list(out.glob(".work/ledger/*/*.json"))) < 7:
                time.sleep(0.002)
            seen |= new
            time.sleep(rng.uniform(0, 0.05))
            processes[number % 3].kill()
            assert processes[number % 3].wait() == -signal.SIGKILL
            processes[number % 3] = subprocess.Popen(run, stderr=subprocess.DEVNULL)
    assert [process.wait(timeout=300) for process in processes] == [exit_codes.SUCCESS] * 3
    assert hash_tree(out) == hash_tree(undisturbed)
    counts = count_done(out)
    # A process killed between recording and logging has done its video without a line in its log.
    assert set(counts.values()) == {1} and len(counts) >= 2


@pytest.mark.slow
def test_a_termination_signal_stops_at_once_and_is_resumable(videos: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "clips"
    with unfinishable(out):
        held = set((out / ".work" / "leases").iterdir())
        run = command(videos, out, "--lease-seconds", "1e9")
        process = subprocess.Popen(run, stderr=subprocess.PIPE, text=True)
        while not list(out.glob(".work/ledger/*/*.json")):
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        _, message = process.communicate(timeout=300)
        assert process.returncode == exit_codes.INTERRUPTED and "same command to resume" in " ".join(message.split())
        assert set((out / ".work" / "leases").iterdir()) == held
    assert preprocess(videos, out).returncode == exit_codes.SUCCESS
    store, expected = ClipStore.open(out), ClipStore.open(undisturbed)
    assert check_store(store) == [] and set(count_done(out).values()) == {1}
    assert [(r.video_id, r.num_frames, r.source_sha256) for r in store.records] == [
        (r.video_id, r.num_frames, r.source_sha256) for r in expected.records
    ]


@pytest.mark.slow
def test_shards_join_to_the_whole(videos: Path, undisturbed: Path, tmp_path: Path) -> None:
    for shard in (1, 2):
        assert preprocess(videos, tmp_path / str(shard), "--shard", f"{shard}/2").returncode == exit_codes.SUCCESS
    stores = [ClipStore.open(tmp_path / str(shard)) for shard in (1, 2)]
    assert [len(store.records) for store in stores] == [4, 4]
    merge_stores(stores, tmp_path / "joined")
    assert hash_tree(tmp_path / "joined") == hash_tree(undisturbed)
    # A joined store has no ledger, yet nothing in it is done again.
    assert preprocess(videos, tmp_path / "joined").returncode == exit_codes.SUCCESS
    assert hash_tree(tmp_path / "joined") == hash_tree(undisturbed) and not count_done(tmp_path / "joined")


@pytest.mark.slow
def test_bad_videos_are_skipped_and_can_be_retried(tmp_path: Path) -> None:
    videos, out = tmp_path / "videos", tmp_path / "clips"
    write_video(videos / "a" / "good.avi", moving_square(6))
    for name, content in {"empty": b"", "text": b"hello"}.items():
        (videos / "a" / f"{name}.avi").write_bytes(content)
    write_video(videos / "a" / "single.avi", moving_square(1))
    result = preprocess(videos, out, layout="folder")
    assert result.returncode == exit_codes.SKIPPED_ITEMS, result.stderr
    assert {f.video_id: f.stage for f in read_failures(out / "failures.csv")} == {
        "a/empty": "open",
        "a/text": "open",
        "a/single": "flow",
    }
    assert [record.video_id for record in ClipStore.open(out).records] == ["a/good"]
    assert check_store(ClipStore.open(out)) == []
    write_video(videos / "a" / "empty.avi", moving_square(6))
    assert "single" in preprocess(videos, out, layout="folder").stderr
    assert len(read_failures(out / "failures.csv")) == 3, "skipped videos stay so until --retry-failed"
    assert preprocess(videos, out, "--retry-failed", layout="folder").returncode == exit_codes.SKIPPED_ITEMS
    assert len(read_failures(out / "failures.csv")) == 2


@pytest.mark.slow
def test_odd_names_survive(tmp_path: Path) -> None:
    names = [
        'it\'s "quoted", [x]{y} (z)*?',
        "two\nlines",
        "bare\rreturn",
        "back\\slash",
        " spaces ",
        "caf\udce9",
        "日本.語",
        "-dash",
        "$(echo)&;|",
    ]
    for name in names:
        write_video(tmp_path / "a.avi", moving_square(3))
        (tmp_path / "videos").mkdir(exist_ok=True)
        (tmp_path / "a.avi").rename(tmp_path / "videos" / f"{name}.avi")
    result = preprocess(tmp_path / "videos", tmp_path / "clips", layout="flat")
    assert result.returncode == exit_codes.SUCCESS, result.stderr
    store = ClipStore.open(tmp_path / "clips")
    ids = {"two\nlines": "two%0Alines", "bare\rreturn": "bare%0Dreturn", "back\\slash": "back%5Cslash"}
    assert sorted(record.video_id for record in store.records) == sorted(ids.get(name, name) for name in names)
    assert check_store(store) == []
    assert store.read(store.records[0], "flow", [0, 1]).shape == (2, 2, 48, 64)


@pytest.mark.slow
def test_a_video_over_its_time_limit_is_skipped(tmp_path: Path) -> None:
    write_video(tmp_path / "videos" / "long.avi", moving_square(200))
    result = preprocess(tmp_path / "videos", tmp_path / "clips", "--time-limit", "1e-6", layout="flat")
    assert result.returncode == exit_codes.SKIPPED_ITEMS
    (failure,) = read_failures(tmp_path / "clips" / "failures.csv")
    assert failure.stage == "time limit" and "1e-06 s" in failure.reason
    result = preprocess(tmp_path / "videos", tmp_path / "clips", "--retry-failed", layout="flat")
    assert result.returncode == exit_codes.SUCCESS


@pytest.mark.slow
def test_a_name_that_does_not_fit_is_skipped(tmp_path: Path) -> None:
    write_video(tmp_path / "videos" / "a.avi", moving_square(3))
    shutil.copy(tmp_path / "videos" / "a.avi", tmp_path / "videos" / f"{'n' * 252}.ts")
    result = preprocess(tmp_path / "videos", tmp_path / "clips", layout="flat")
    assert result.returncode == exit_codes.SKIPPED_ITEMS, result.stderr
    (failure,) = read_failures(tmp_path / "clips" / "failures.csv")
    assert failure.stage == "store" and "name" in failure.reason
    assert [record.video_id for record in ClipStore.open(tmp_path / "clips").records] == ["a"]


@pytest.mark.slow
def test_a_process_that_was_frozen_and_superseded_still_finishes_its_videos(videos: Path, tmp_path: Path) -> None:
    out = tmp_path / "clips"
    frozen = subprocess.Popen(
        command(videos, out, "--shard", "1/2", "--lease-seconds", "1"), stderr=subprocess.PIPE, text=True
    )
    while not list(out.glob(".work/tmp/*/*.mp4")):
        assert frozen.poll() is None
        time.sleep(0.005)
    frozen.send_signal(signal.SIGSTOP)
    for lease in out.glob(".work/leases/*"):
        os.utime(lease, (0, 0))  # its heartbeat was long ago
    assert preprocess(videos, out, "--shard", "2/2", "--lease-seconds", "1").returncode == exit_codes.SUCCESS
    frozen.send_signal(signal.SIGCONT)
    assert frozen.wait(timeout=900) == exit_codes.SUCCESS
    assert len(ClipStore.open(out).records) == 8 and check_store(ClipStore.open(out)) == []


@pytest.mark.slow
def test_other_classes_with_the_same_labels_are_refused_before_any_work(tmp_path: Path) -> None:
    for name in "ab":
        write_video(tmp_path / name / name / "1.avi", moving_square(3))
    assert preprocess(tmp_path / "b", tmp_path / "clips", layout="folder").returncode == exit_codes.SUCCESS
    before = hash_tree(tmp_path / "clips")
    result = preprocess(tmp_path / "a", tmp_path / "clips", layout="folder")
    assert result.returncode == exit_codes.USAGE_ERROR and "use another --out" in " ".join(result.stderr.split())
    assert hash_tree(tmp_path / "clips") == before


def test_an_interrupted_adoption_of_a_joined_store_loses_nothing(
    videos: Path, undisturbed: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(undisturbed, tmp_path / "clips"))
    (out / ".work" / "adopted").unlink()
    for path in sorted(out.glob(".work/ledger/*/*.json"))[1:]:
        path.unlink()
    assert preprocess(videos, out).returncode == exit_codes.SUCCESS
    assert hash_tree(out) == hash_tree(undisturbed) and count_done(out) == count_done(undisturbed)


def test_a_changed_source_is_converted_again(tmp_path: Path) -> None:
    videos, out = tmp_path / "videos", tmp_path / "clips"
    for name in "abcd":
        write_video(videos / f"{name}.avi", moving_square(4, seed=ord(name)))
    options = ("--modalities", "rgb")
    assert preprocess(videos, out, *options, layout="flat").returncode == exit_codes.SUCCESS
    before = {record.video_id: record for record in ClipStore.open(out).records}
    write_video(videos / "a.avi", moving_square(7, seed=1))  # another size
    data = bytearray((videos / "b.avi").read_bytes())
    data[data.index(b"LIST") + 4000] ^= 1  # the same size, another time
    (videos / "b.avi").write_bytes(data)
    os.utime(videos / "c.avi")  # another time only
    result = preprocess(videos, out, *options, layout="flat")
    text = "".join(result.stderr.split())
    assert result.returncode == exit_codes.SUCCESS, result.stderr
    assert f"{videos}/a.aviwaschangedsinceitwasconverted" in text and f"{videos}/b.aviwaschanged" in text
    assert text.count("waschanged") == 2 and "2sourcevideoshaveanothertime" in text
    after = {record.video_id: record for record in ClipStore.open(out).records}
    assert after["a"].num_frames == 7 and after["b"].source_sha256 != before["b"].source_sha256
    assert (after["c"], after["d"]) == (before["c"], before["d"])
    (videos / "a.avi").write_bytes(b"broken")
    assert preprocess(videos, out, *options, layout="flat").returncode == exit_codes.SKIPPED_ITEMS
    assert sorted(record.video_id for record in ClipStore.open(out).records) == ["b", "c", "d"]
    assert check_store(ClipStore.open(out)) == [], "what was made of the old file is gone"
    accepted = run_cli("clips", "accept", out)
    assert accepted.returncode == exit_codes.SUCCESS and "1 of 1 skipped videos are accepted" in accepted.stdout
    assert preprocess(videos, out, *options, layout="flat").returncode == exit_codes.SUCCESS


def test_the_same_file_in_two_classes_or_subsets_is_reported(tmp_path: Path) -> None:
    videos, out = tmp_path / "videos", tmp_path / "clips"
    for number in range(3):
        write_video(videos / "a" / f"{number}.avi", moving_square(3, seed=number))
    shutil.copytree(videos / "a", videos / "b")
    result = preprocess(videos, out, "--modalities", "rgb", layout="folder")
    text = " ".join(result.stderr.split())
    assert result.returncode == exit_codes.SUCCESS and "--source-pattern" in text
    assert "'a/0' and 'b/0' are the same file, in the classes 'a' and 'b'" in text
    faults = check_store(ClipStore.open(out))
    assert sum("in the classes 'a' and 'b'" in fault for fault in faults) == 3
    assert sum("in the subsets test and train of split 1" in fault for fault in faults) == len(faults) - 3
    pattern = preprocess(videos, out, "--modalities", "rgb", "--source-pattern", r"(\d)\.avi", layout="folder")
    assert "--source-pattern" not in pattern.stderr, "nothing to advise"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="needs root to mount a small disk")
@pytest.mark.parametrize("kilobytes", [64, 100, 148, 300])
def test_a_full_disk_stops_with_a_clear_message_and_a_valid_store(tmp_path: Path, kilobytes: int) -> None:
    videos = tmp_path / "videos"
    for number in range(6):
        noise = moving_square(60, width=160, height=128, seed=number)
        write_video(videos / f"{number}.avi", noise)
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        pytest.skip("this system does not let root mount a small disk")
    try:
        result = preprocess(videos, disk / "clips", "--modalities", "rgb", "--quality", "8", layout="flat")
        assert result.returncode == exit_codes.FAILED, result.stderr
        assert "disk is full" in " ".join(result.stderr.split()) and "Traceback" not in result.stderr
        store = ClipStore.open(disk / "clips")
        assert len(store.records) < 6
        allowed = {"split 1:", "the mani"}  # not all videos are there yet, or none; but what is there is fine
        assert {fault[:8] for fault in check_store(store)} <= allowed
        subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
        assert (
            preprocess(videos, disk / "clips", "--modalities", "rgb", "--quality", "8", layout="flat").returncode == 0
        )
        assert len(ClipStore.open(disk / "clips").records) == 6
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--short-edge", "32"], "short_edge is 0 in the store, 32 now"),
        (["--flow-bound", "10"], "flow.bound is 'size' in the store, 10.0 now"),
        (["--flow-bound", "wide"], "must be size, auto or a number of pixels above 0"),
        (["--flow-size", "native"], "flow.size is 'stored' in the store, 'native' now"),
        (["--flow-size", "huge"], "flow.size"),
        (["--flow-parameters", "warps=2"], "flow.parameters.warps is 1 in the store, 2 now"),
        (["--modalities", "rgb"], "modalities is"),
        (["--flow-backend", "cuda"], "choose from"),
        (["--flow-parameters", "wraps=2"], "did you mean 'warps'"),
        (["--modalities", "rgb,depth"], "modalities"),
        (["--layout", "ucf"], "choose from ucf101"),
        (["--shard", "3/2"], "not of the form i/n"),
        (["--decoder", "magic"], "choose from auto, av, decord"),
        (["--quality", "99"], "quality"),
        (["--nonsense"], "nonsense"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_line_and_exit_code_2(
    videos: Path, undisturbed: Path, options: list[str], message: str
) -> None:
    result = preprocess(videos, undisturbed, *options)
    text = " ".join(result.stderr.replace("│", " ").split())
    assert result.returncode == exit_codes.USAGE_ERROR and message in text, text
    assert "Traceback" not in text


def test_a_store_of_format_1_is_not_mixed_with_other_levels(videos: Path, tmp_path: Path) -> None:
    old = Path(__file__).parents[1] / "data" / "v0" / "clips"
    store = Path(shutil.copytree(old, tmp_path / "clips"))
    result = preprocess(videos, store)
    assert result.returncode == exit_codes.USAGE_ERROR and "has format 1" in " ".join(result.stderr.split())
    assert hash_tree(store) == hash_tree(old)


def test_a_foreign_folder_is_not_written_into(videos: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    result = preprocess(videos, tmp_path)
    assert result.returncode == exit_codes.USAGE_ERROR and "not a clip store" in " ".join(result.stderr.split())
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


@pytest.mark.slow
def test_an_estimate_writes_nothing(videos: Path, tmp_path: Path) -> None:
    result = preprocess(videos, tmp_path / "clips", "--estimate")
    assert result.returncode == exit_codes.SUCCESS
    number = re.match(r"8 videos: about (under 1|\d+) s with 1 workers, about (\d+) kB\n", result.stdout)
    assert number is not None and int(number[2]) > 10, result.stdout
    assert not (tmp_path / "clips").exists()


def test_files_that_another_process_recorded_meanwhile_are_kept_when_the_ledger_fails(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process loses its lease while it publishes; the other records the video, then this one's write fails."""
    out = tmp_path / "clips"
    collection = scan_collection("ucf101", videos)
    info = StoreInfo(modalities=("rgb",), short_edge=0, max_frames=0, quality=18, flow=None)
    prepare_store(out, info)
    plain_write = Ledger.write
    stored: list[Path] = []

    def write(ledger: Ledger, outcome: ClipRecord | Failure) -> bool:
        plain_write(ledger, outcome)  # the other process
        stored.extend(out.glob("rgb/**/*.mp4"))
        raise OSError(errno.EIO, "the network disk is gone")

    monkeypatch.setattr(Ledger, "write", write)
    config = WorkerConfig(info=info, decoder="av")
    with pytest.raises(OSError, match="network disk"):
        PreprocessRun(out, collection, info).run(collection.videos[:1], [config], time_limit=60, retry_failed=False)
    assert stored and all(path.is_file() for path in stored)


class IdlePool:
    """Workers without work. A poll takes as long as it may, on a clock of its own; at the end, the other is done."""

    idle, busy = True, False

    def __init__(self, seconds: float, at_end: Callable[[], object]) -> None:
        self.now, self._seconds, self._at_end = 0.0, seconds, at_end

    def poll(self, timeout: float) -> list[object]:
        self.now += timeout
        if self._seconds <= self.now < self._seconds + timeout:
            self._at_end()
        return []


def test_a_video_that_another_process_holds_is_looked_at_ever_more_rarely(
    videos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look lists a folder and reads two files, perhaps over the network: 9 in 30 s, not one per poll."""
    out, collection = tmp_path / "clips", scan_collection("ucf101", videos)
    info = StoreInfo(modalities=("rgb",), short_edge=0, max_frames=0, quality=18, flow=None)
    prepare_store(out, info)
    run, video = PreprocessRun(out, collection, info), collection.videos[0]
    assert Leases(out / ".work" / "leases").claim(video_key(video.video_id)) is not None
    ledger = Ledger(out / ".work" / "ledger")
    pool = IdlePool(30, lambda: ledger.write(Failure(video.video_id, "open", "by the other process")))
    looks: list[float] = []
    plain_claim = Leases.claim

    def claim(leases: Leases, key: str) -> Lease | None:
        looks.append(pool.now)
        return plain_claim(leases, key)

    monkeypatch.setattr(Leases, "claim", claim)
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: pool.now))
    run._process_pending(deque([video]), pool, RunProgress(total=1, done=0))  # type: ignore[arg-type]
    assert run._summary.num_done_by_others == 1 and 30 <= pool.now < 36
    assert 6 <= len(looks) <= 11 and looks[1] < 1, looks
