"""Reading clips: our store, CoCLR's LMDB files and JPEG folders give the same through one interface."""

import pickle
from pathlib import Path

import cv2
import lmdb
import msgpack
import numpy as np
import pytest
import torch

from covid_cmsf.clips import Clips, ClipStore, open_clips
from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.formats.coclr_lmdb import CoclrLmdb
from covid_cmsf.clips.formats.rawframes import RawFrames


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
    assert torch.allclose(raw.float() * 40 / 255 - 20, flow[[7]], atol=1e-5)


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
    with pytest.raises(ValueError, match="unknown format 7; this version reads format 1"):
        ClipStore.open(tmp_path)


def jpegs_of(store: ClipStore) -> dict[str, dict[str, list[bytes]]]:
    """{"rgb" | "flow": {video_id: JPEG frames}} as CoCLR's script writes them: flow as B, G, R = x, y, 128."""
    found: dict[str, dict[str, list[bytes]]] = {"rgb": {}, "flow": {}}
    for record in store.records:
        rgb = store.read_raw(record, "rgb", list(range(record.num_frames))).permute(0, 2, 3, 1).numpy()
        flow = store.read_raw(record, "flow", list(range(record.num_flow))).numpy()
        pictures = [np.stack([x, y, np.full_like(x, 128)], axis=-1) for x, y in flow]
        found["rgb"][record.video_id] = [encode(picture[..., ::-1]) for picture in rgb]
        found["flow"][record.video_id] = [encode(picture) for picture in pictures]
    return found


def encode(picture: np.ndarray) -> bytes:
    written, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 100])
    assert written
    return bytes(data)


def write_lmdb(path: Path, videos: dict[str, list[bytes]], *, old: bool) -> None:
    """CoCLR's format; `old` is msgpack 0.6, which had one type for bytes and text."""

    def pack(value: object) -> bytes:
        return bytes(msgpack.packb(value, use_bin_type=not old))

    names = sorted(videos, reverse=True)  # ids are shuffled there, so not in the order of the names here
    keys = {name: b"%09d" % number for number, name in enumerate(names)}
    insertion = sorted(names)
    with lmdb.open(str(path), subdir=False, map_size=1 << 28) as environment, environment.begin(write=True) as file:
        for name in names:
            file.put(keys[name], pack(videos[name]))
        file.put(b"__keys__", pack([keys[name] for name in insertion]))
        file.put(b"__len__", pack(len(names)))
        file.put(b"__order__", pack(names))
        file.put(b"__vlen__", pack([len(videos[name]) for name in insertion]))


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
    with pytest.raises(ValueError, match="lacks an entry"):
        open_clips(tmp_path / "y.lmdb")


def test_names_in_an_lmdb_that_lead_elsewhere_are_refused(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "x_frame.lmdb", {"a/one": [b"?"], "../../two": [b"?"]}, old=False)
    with pytest.raises(ValueError, match=r"x_frame.lmdb: .*'\.\./\.\./two'.*a video id is a relative path"):
        open_clips(tmp_path / "x_frame.lmdb")


def test_jpeg_folders_read_back_equal(store: ClipStore, tmp_path: Path) -> None:
    for record in store.records:
        folder = tmp_path / record.video_id
        folder.mkdir(parents=True)
        for i, picture in enumerate(store.read_raw(record, "rgb", list(range(record.num_frames))), start=1):
            (folder / f"img_{i:05d}.jpg").write_bytes(encode(picture.permute(1, 2, 0).numpy()[..., ::-1]))
        for i, (x, y) in enumerate(store.read_raw(record, "flow", list(range(record.num_flow))).numpy(), start=1):
            (folder / f"flow_x_{i:05d}.jpg").write_bytes(encode(x))
            (folder / f"flow_y_{i:05d}.jpg").write_bytes(encode(y))
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
