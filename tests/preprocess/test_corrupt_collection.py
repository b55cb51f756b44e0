"""A collection in which every kind of bad file occurs: each is stored or listed as skipped, and the run ends."""

from pathlib import Path

import numpy as np
import pytest

from covid_cmsf import exit_codes
from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.maintenance import check_store
from covid_cmsf.clips.records import read_failures
from tests.clips.test_decoders import rotate_header
from tests.factories import moving_square, write_video
from tests.preprocess.commands import preprocess


@pytest.mark.slow
def test_every_file_of_a_corrupt_collection_is_stored_or_listed_as_skipped(tmp_path: Path) -> None:
    folder, out = tmp_path / "videos" / "a", tmp_path / "clips"
    frames = moving_square(40)
    for name in ("whole", "truncated", "unreadable"):
        write_video(folder / f"{name}.avi", frames)
    flipped = write_video(folder / "flipped.mp4", frames, codec="libx264")
    write_video(folder / "chroma.mkv", frames[:6], codec="libx264", pixel_format="yuv444p")
    write_video(folder / "rate.mkv", frames[:6], codec="libx264", times=[0, 1, 2, 10, 11, 30])
    write_video(folder / "odd.avi", moving_square(6, width=63, height=47), codec="mjpeg", pixel_format="yuvj444p")
    rotate_header(write_video(folder / "rotated.mp4", frames[:6], codec="libx264"))
    write_video(folder / "ending.mp4", frames[:6], codec="libx264").rename(folder / "ending.avi")
    write_video(folder / "single.avi", frames[:1])
    huge = np.zeros((2, 6002, 6002, 3), np.uint8)
    write_video(folder / "huge.mkv", huge, codec="mjpeg", pixel_format="yuvj420p")
    (folder / "empty.avi").write_bytes(b"")
    (folder / "text.avi").write_bytes(b"no video")
    for name in ("no_frames.avi", "no_frames_either.mp4", "nor_here.mkv"):
        write_video(folder / name, frames[:0])
    data = (folder / "truncated.avi").read_bytes()
    (folder / "truncated.avi").write_bytes(data[: len(data) // 2])
    damaged = bytearray(flipped.read_bytes())
    for position in np.random.default_rng(0).integers(48, len(damaged), 60):
        damaged[position] ^= 0xFF
    flipped.write_bytes(damaged)
    (folder / "self.avi").symlink_to(folder / "self.avi")
    (folder / "loop").symlink_to(tmp_path / "videos")
    names = {path.stem for path in folder.iterdir()} - {"loop"}
    (folder / "unreadable.avi").unlink()
    (folder / "unreadable.avi").symlink_to("/proc/self/mem")  # opens, but can't be read, not even by root

    result = preprocess(tmp_path / "videos", out, layout="folder")

    assert result.returncode == exit_codes.SKIPPED_ITEMS, result.stderr
    assert "Traceback" not in result.stderr
    stored = {record.video_id.removeprefix("a/") for record in ClipStore.open(out).records}
    skipped = {failure.video_id.removeprefix("a/") for failure in read_failures(out / "failures.csv")}
    assert not stored & skipped
    assert stored | skipped == names
    assert stored - {"flipped"} == {"whole", "truncated", "chroma", "rate", "odd", "rotated", "ending"}
    assert "a/truncated: the header says 40 frames" in " ".join(result.stderr.split())
    assert check_store(ClipStore.open(out)) == []
