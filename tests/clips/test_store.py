"""Reading clips: our store, CoCLR's LMDB files and JPEG folders give the same through one interface."""

import os
import pickle
import sys
from pathlib import Path

import cv2
import lmdb
import msgpack
import numpy as np
import pytest
import torch

from covid_cmsf.clips import Clips, ClipStore, open_clips
from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.flow_codec import COCLR_LEVELS
from covid_cmsf.clips.formats.coclr_lmdb import CoclrLmdb
from covid_cmsf.clips.formats.rawframes import RawFrames
from tests.factories import encode_jpeg, write_lmdb


def test_frames_read_by_number_equal_the_whole_file(store: ClipStore) -> None:
    record = store.records[0]
    with open_video(store.path / "rgb" / f"{record.video_id}.mp4") as video:
        frames = torch.from_numpy(np.stack(list(video.frames()))).permute(0, 3, 1, 2)
    for numbers in ([0], [19], [3, 4, 5], [17, 2, 2, 9]):
        assert torch.equal(store.read(record, "rgb", numbers), frames[numbers])
    flow = store.read(record, "flow", list(range(19)))
    assert flow.shape == (19, 2, 48, 64) and flow.dtype == torch.float32
    assert torch.equal(store.read(record, "flow", [7, 3]), flow[[7, 3]])
    raw = store.read_raw(record, "flow", [7])
    assert raw.dtype == torch.uint8
    assert store.flow_levels(record).bound == 4.0 and store.info.format == 2  # 20 px * 48 / 240
    assert torch.allclose((raw.float() - 128) * 4 / 127, flow[[7]], atol=1e-5)


def test_both_decoders_read_the_store_alike(store: ClipStore) -> None:
    other = ClipStore.open(store.path, decoder="decord")
    for modality in ("rgb", "flow"):
        assert torch.equal(
            store.read(store.records[1], modality, [2, 11]), other.read(store.records[1], modality, [2, 11])
        )


def test_a_moving_square_moves_to_the_right_in_the_flow(store: ClipStore) -> None:
    flow = store.read(store.records[0], "flow", list(range(4, 12)))
    fast = flow[:, 0] > 0.4
    assert fast.float().mean() > 0.02 and flow[:, 0][fast].mean() < 2.5


def test_splits_select_records(store: ClipStore) -> None:
    assert len(store.select("1", "test")) == 6
    with pytest.raises(ValueError, match="no video in subset 'train' of split '1'; it has: test"):
        store.select("1", "train")
    with pytest.raises(ValueError, match="no split '9'; these clips have splits: 1, 2, 3"):
        store.select("9", "train")


def test_a_store_can_be_sent_to_another_process(store: ClipStore) -> None:
    again = pickle.loads(pickle.dumps(store))
    assert torch.equal(again.read(store.records[0], "rgb", [1]), store.read(store.records[0], "rgb", [1]))


@pytest.mark.parametrize(
    ("modality", "frame_indices", "message"),
    [
        ("rgb", [20], "rgb frames 0 to 19; asked for 20"),
        ("flow", [19], "flow frames 0 to 18; asked for 19"),
        ("rgb", [-1], "asked for -1"),
        ("rgb", [], "frame_indices is empty"),
        ("depth", [0], "no modality 'depth'"),
    ],
)
def test_wrong_requests_are_explained(store: ClipStore, modality: str, frame_indices: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        store.read(store.records[0], modality, frame_indices)


def test_wrong_folders_are_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ClipStore.open(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="no store.json"):
        ClipStore.open(tmp_path)
    (tmp_path / "store.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        ClipStore.open(tmp_path)
    (tmp_path / "store.json").write_text('{"format": 7}')
    with pytest.raises(ValueError, match="unknown format 7; this version reads formats 1 and 2"):
        ClipStore.open(tmp_path)


def jpegs_of(store: ClipStore) -> dict[str, dict[str, list[bytes]]]:
    """{"rgb" | "flow": {video_id: JPEG frames}} as CoCLR's script writes them: flow as B, G, R = x, y, 128."""
    found: dict[str, dict[str, list[bytes]]] = {"rgb": {}, "flow": {}}
    for record in store.records:
        rgb = store.read_raw(record, "rgb", list(range(record.num_frames))).permute(0, 2, 3, 1).numpy()
        flow = COCLR_LEVELS.encode(store.read(record, "flow", list(range(record.num_flow))).numpy())
        pictures = [np.stack([x, y, np.full_like(x, 128)], axis=-1) for x, y in flow]
        found["rgb"][record.video_id] = [encode_jpeg(picture[..., ::-1]) for picture in rgb]
        found["flow"][record.video_id] = [encode_jpeg(picture) for picture in pictures]
    return found


def assert_same_clips(clips: Clips, store: ClipStore) -> None:
    assert [r.video_id for r in clips.records] == [r.video_id for r in store.records]
    for ours, theirs in zip(store.records, clips.records, strict=True):
        assert (theirs.num_frames, theirs.num_flow) == (ours.num_frames, ours.num_flow)
        rgb = clips.read(theirs, "rgb", [5, 1]).float() - store.read(ours, "rgb", [5, 1]).float()
        flow = clips.read(theirs, "flow", [5, 1]) - store.read(ours, "flow", [5, 1])
        assert rgb.abs().mean() < 2 and flow.abs().mean() < 0.25


def decoded(jpeg: bytes, *, gray: bool = False) -> torch.Tensor:
    """A JPEG as (C, H, W) RGB or (H, W) gray, by OpenCV alone."""
    picture = cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_GRAYSCALE if gray else cv2.IMREAD_COLOR)
    return torch.from_numpy(picture if gray else picture[..., ::-1].copy().transpose(2, 0, 1))


@pytest.mark.parametrize("old", [True, False])
def test_lmdbs_of_both_msgpack_generations_read_back_equal(store: ClipStore, tmp_path: Path, old: bool) -> None:
    jpegs = jpegs_of(store)
    write_lmdb(tmp_path / "ucf101_frame.lmdb", jpegs["rgb"], old=old)
    write_lmdb(tmp_path / "ucf101_tvl1_frame.lmdb", jpegs["flow"], old=old)
    clips = open_clips(tmp_path / "ucf101_frame.lmdb")
    assert isinstance(clips, CoclrLmdb)
    assert_same_clips(clips, store)
    again = pickle.loads(pickle.dumps(clips))
    for record in clips.records:
        rgb, flow = again.read_raw(record, "rgb", [7, 0]), again.read_raw(record, "flow", [4, 18])
        for position, number in enumerate([7, 0]):
            assert torch.equal(rgb[position], decoded(jpegs["rgb"][record.video_id][number]))
        for position, number in enumerate([4, 18]):
            _, y, x = decoded(jpegs["flow"][record.video_id][number])
            assert torch.equal(flow[position], torch.stack([x, y])), "blue is x, green is y, to the bit"


def test_a_damaged_lmdb_is_explained(tmp_path: Path) -> None:
    (tmp_path / "x.lmdb").write_bytes(b"not an lmdb" * 1000)
    with pytest.raises(ValueError, match="not a readable LMDB"):
        open_clips(tmp_path / "x.lmdb")
    with lmdb.open(str(tmp_path / "y.lmdb"), subdir=False) as environment, environment.begin(write=True) as file:
        file.put(b"a", b"b")
    with pytest.raises(ValueError, match=r"y\.lmdb is damaged.*lacks an entry"):
        open_clips(tmp_path / "y.lmdb")


def small_lmdb(path: Path) -> Path:
    rng = np.random.default_rng(0)
    frames = [encode_jpeg(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)) for _ in range(4)]
    write_lmdb(path, {f"a/{number}": frames for number in range(3)})
    return path


@pytest.mark.parametrize("size", [0, 100, 4096, 8192, 9000, 20_000, -4096, -1])
def test_a_truncated_lmdb_is_an_error_not_the_end_of_the_process(tmp_path: Path, size: int) -> None:
    path = small_lmdb(tmp_path / "x_frame.lmdb")
    environment = lmdb.open(str(path), subdir=False, readonly=True, lock=False)
    used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    environment.close()
    os.truncate(path, size if size >= 0 else used + size)
    with pytest.raises(ValueError, match=r"x_frame\.lmdb is (truncated|not a readable LMDB)"):
        open_clips(path)


def rewrite(path: Path, key: bytes, value: bytes | None) -> None:
    with lmdb.open(str(path), subdir=False, map_size=1 << 28) as environment, environment.begin(write=True) as file:
        file.delete(key) if value is None else file.put(key, value)


@pytest.mark.parametrize("key", [b"__keys__", b"__order__", b"__vlen__"])
@pytest.mark.parametrize(
    "value",
    [None, b"", b"\xc1", msgpack.packb(7), msgpack.packb([1, 2]), msgpack.packb({"a": 1}), b"\xdd\xff\xff\xff\xff"],
)
def test_an_index_of_other_content_is_explained(tmp_path: Path, key: bytes, value: bytes | None) -> None:
    path = small_lmdb(tmp_path / "x_frame.lmdb")
    rewrite(path, key, value)
    with pytest.raises(ValueError, match=r"x_frame\.lmdb"):
        open_clips(path)


@pytest.mark.parametrize(
    "value", [None, b"\xc1", msgpack.packb(7), msgpack.packb([]), msgpack.packb([7, 8]), msgpack.packb([b"?"])]
)
def test_a_damaged_video_of_an_lmdb_is_named_and_leaves_the_others_readable(
    tmp_path: Path, value: bytes | None
) -> None:
    path = small_lmdb(tmp_path / "x_frame.lmdb")
    rewrite(path, b"000000001", value)  # a/1: the names are numbered in reversed order
    clips = open_clips(path)
    with pytest.raises(ValueError, match=r"x_frame\.lmdb"):
        clips.read_raw(clips.records[1], "rgb", [0])
    assert clips.read_raw(clips.records[0], "rgb", [0]).shape == (1, 3, 64, 64)


def test_an_lmdb_without_msgpack_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = small_lmdb(tmp_path / "x_frame.lmdb")
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ValueError, match=r"needs `pip install covid-cmsf\[coclr\]`"):
        open_clips(path)


def test_names_in_an_lmdb_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "x_frame.lmdb", {"a/one": [b"?"], "../../two": [b"?"]}, old=False)
    with pytest.raises(ValueError, match=r"x_frame.lmdb: .*'\.\./\.\./two'.*a video id is a relative path"):
        open_clips(tmp_path / "x_frame.lmdb")


def test_jpeg_folders_read_back_equal(store: ClipStore, tmp_path: Path) -> None:
    for record in store.records:
        folder = tmp_path / record.video_id
        folder.mkdir(parents=True)
        for i, picture in enumerate(store.read_raw(record, "rgb", list(range(record.num_frames))), start=1):
            (folder / f"img_{i:05d}.jpg").write_bytes(encode_jpeg(picture.permute(1, 2, 0).numpy()[..., ::-1]))
        flow = store.read(record, "flow", list(range(record.num_flow))).numpy()
        for i, (x, y) in enumerate(COCLR_LEVELS.encode(flow), start=1):
            (folder / f"flow_x_{i:05d}.jpg").write_bytes(encode_jpeg(x))
            (folder / f"flow_y_{i:05d}.jpg").write_bytes(encode_jpeg(y))
    clips = open_clips(tmp_path)
    assert isinstance(clips, RawFrames)
    assert_same_clips(clips, store)
    for record in clips.records:
        folder = tmp_path / record.video_id
        (rgb,), (flow,) = clips.read_raw(record, "rgb", [9]), clips.read_raw(record, "flow", [11])
        assert torch.equal(rgb, decoded((folder / "img_00010.jpg").read_bytes()))
        for axis, plane in zip("xy", flow, strict=True):
            assert torch.equal(plane, decoded((folder / f"flow_{axis}_00012.jpg").read_bytes(), gray=True))
    (tmp_path / store.records[0].video_id / "img_00007.jpg").unlink()
    with pytest.raises(ValueError, match="img_00007.jpg is missing"):
        open_clips(tmp_path)
