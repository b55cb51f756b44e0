"""CoCLR's LMDBs and folders of JPEG frames, from the split lists to a measured network, in both modalities."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import covid_cmsf as cc
from covid_cmsf.cli.train import load_run
from covid_cmsf.training.run import run_training
from tests.factories import encode_jpeg, moving_square, write_lmdb

pytestmark = pytest.mark.slow
GROUPS, NUM_FRAMES = (1, 2, 8, 9, 10, 11), 6
IDS = [f"{name}/v_{name}_g{group:02d}_c01" for name in ("Archery", "YoYo") for group in GROUPS]


def frames_of(video_id: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """RGB frames (H, W, 3) and flow (2, H, W) of a made-up video."""
    rgb = moving_square(NUM_FRAMES, seed=IDS.index(video_id))
    flow = np.random.default_rng(IDS.index(video_id)).integers(100, 156, (NUM_FRAMES - 1, 2, *rgb.shape[1:3]))
    return list(rgb), list(flow.astype(np.uint8))


def write_splits(folder: Path) -> Path:
    """UCF-101's lists: the groups below 8 are for testing."""
    folder.mkdir()
    tested = {video_id: int(video_id[-6:-4]) < 8 for video_id in IDS}
    for name, test in (("trainlist01.txt", False), ("testlist01.txt", True)):
        lines = [f"{video_id}.avi\n" for video_id in IDS if tested[video_id] == test]
        (folder / name).write_text("".join(lines))
    return folder


def write_lmdbs(root: Path) -> str:
    rgb, flow = {}, {}
    for video_id in IDS:
        pictures, motions = frames_of(video_id)
        rgb[video_id] = [encode_jpeg(picture[..., ::-1]) for picture in pictures]
        flow[video_id] = [encode_jpeg(np.stack([x, y, np.full_like(x, 128)], axis=-1)) for x, y in motions]
    write_lmdb(root / "ucf101_frame.lmdb", rgb)
    write_lmdb(root / "ucf101_tvl1_frame.lmdb", flow)
    return f"{root / 'ucf101_frame.lmdb'}?splits={write_splits(root / 'lists')}"


def write_jpeg_folders(root: Path) -> str:
    for video_id in IDS:
        folder = root / "frames" / video_id
        folder.mkdir(parents=True)
        pictures, motions = frames_of(video_id)
        for number, picture in enumerate(pictures, start=1):
            (folder / f"img_{number:05d}.jpg").write_bytes(encode_jpeg(picture[..., ::-1]))
        for number, motion in enumerate(motions, start=1):
            for axis, plane in zip("xy", motion, strict=True):
                (folder / f"flow_{axis}_{number:05d}.jpg").write_bytes(encode_jpeg(plane))
    return f"{root / 'frames'}?splits={write_splits(root / 'lists')}"


@pytest.mark.parametrize("modality", ["rgb", "flow"])
@pytest.mark.parametrize("write", [write_lmdbs, write_jpeg_folders])
def test_trained_and_measured_end_to_end(tmp_path: Path, write: Callable[[Path], str], modality: str) -> None:
    address = write(tmp_path)
    overrides = [
        "encoder=c21d_tiny",
        "views={length: 4, stride: 1, size: 32, frame_size: 32}",
        "method.bank_size=8",
        "runtime={device: cpu, workers: 0, threads: 1, tensorboard: false}",
    ]
    config, _ = load_run("infonce", overrides, clips=address, modality=modality, epochs=3, batch_size=4)
    assert run_training(config, tmp_path / "run") == "finished"
    features = cc.extract_features(tmp_path / "run", address, tmp_path / "x.features", windows=1, device="cpu")
    assert sorted(features.videos.ids) == sorted(IDS)
    result = cc.retrieval(tmp_path / "x.features")
    assert result.num_gallery == 8 and 0 <= result.recall[1] <= 100
