"""Features from clips: values, independence of workers and batches, killing and continuing, broken videos."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.clips import open_clips
from covid_cmsf.evaluation.features import extract as extract_module
from covid_cmsf.evaluation.features import shards as shards_module
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.evaluation.features.model import EvalModel, create_random_model, load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.subsets import load_split
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from covid_cmsf.models.checkpoints.formats.coclr import to_coclr
from covid_cmsf.models.encoder import weights_sha256
from tests.clips.test_images import BAD_IMAGES
from tests.evaluation.factories import SyntheticClips, small_checkpoint, small_encoder
from tests.factories import make_image_folder

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.fixture
def eval_model() -> EvalModel:
    return small_encoder()[1]


def extract(eval_model: EvalModel, out: Path, clips: SyntheticClips | None = None, **options: object) -> Features:
    return extract_features(eval_model, clips or SyntheticClips(), out, **options)  # type: ignore[arg-type]


def test_rows_are_means_of_unit_features_of_windows(eval_model: EvalModel, tmp_path: Path) -> None:
    clips = SyntheticClips()
    features = extract(eval_model, tmp_path / "f", clips)
    data = VideoDataset(clips, clips.records, ["train"] * 24, features.provenance.eval_protocol)
    for row in (0, 7, 23):
        views = torch.stack(list(data[row].views(data.eval_protocol, torch.device("cpu"))))
        with torch.inference_mode():
            windows = eval_model.network(views)
        mine = features.windows[features.window_videos == row]
        assert (mine - windows).abs().max() < 1e-5 * windows.abs().max()
        assert torch.allclose(features.features[row], F.normalize(windows, dim=1).mean(0), atol=1e-6)
    assert features.videos.subsets.count("test") == 6 and features.videos.class_names == ("c0", "c1", "c2")
    assert features.window_starts[:4].tolist() == [0, 3, 6, 9]


def test_what_is_read_is_what_was_written(eval_model: EvalModel, tmp_path: Path) -> None:
    features = extract(eval_model, tmp_path / "f")
    again = load_features(tmp_path / "f")
    assert again.provenance == features.provenance and again.videos.ids == features.videos.ids
    for name in ("features", "windows", "window_videos", "window_starts"):
        assert torch.equal(getattr(again, name), getattr(features, name))
    assert torch.equal(again.videos.labels, features.videos.labels)


@pytest.mark.slow
def test_workers_do_not_change_a_bit(eval_model: EvalModel, tmp_path: Path) -> None:
    extract(eval_model, tmp_path / "none")
    extract(eval_model, tmp_path / "one", num_workers=1)
    assert (tmp_path / "none").read_bytes() == (tmp_path / "one").read_bytes()


@pytest.mark.slow
def test_batch_size_changes_the_last_bits_at_most(eval_model: EvalModel, tmp_path: Path) -> None:
    usual = extract(eval_model, tmp_path / "16")
    for batch_size in (1, 7):
        other = extract(eval_model, tmp_path / str(batch_size), batch_size=batch_size)
        assert (other.features - usual.features).abs().max() < 1e-6
        assert evaluate_retrieval(other).recall == evaluate_retrieval(usual).recall


@pytest.mark.parametrize("protocol", ["clean", "coclr"])
def test_extracting_twice_gives_the_same_bytes(eval_model: EvalModel, tmp_path: Path, protocol: str) -> None:
    eval_protocol = build_eval_protocol(eval_model.metadata, protocol=protocol)
    for name in ("a", "b"):
        extract(eval_model, tmp_path / name, eval_protocol=eval_protocol)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_encoder_is_not_changed(tmp_path: Path) -> None:
    encoder, eval_model = small_encoder()
    before = weights_sha256(encoder)
    extract(eval_model, tmp_path / "f")
    assert weights_sha256(encoder) == before and not encoder.training


def test_an_encoder_that_changes_is_noticed(tmp_path: Path) -> None:
    encoder, eval_model = small_encoder()

    class Restless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, clip: torch.Tensor) -> torch.Tensor:
            next(self.encoder.buffers()).add_(0.1)
            feature: torch.Tensor = self.encoder(clip)
            return feature

    with pytest.raises(RuntimeError, match="changed during the extraction"):
        extract(EvalModel(Restless(), eval_model.metadata, "restless"), tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_killed_extraction_continues_to_the_same_bytes(
    eval_model: EvalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module, "SHARD_SIZE", 5)
    monkeypatch.setattr(extract_module, "SHARD_SIZE", 5)
    extract(eval_model, tmp_path / "whole")
    seen = []

    def kill_at_13() -> None:
        seen.append(1)
        if len(seen) == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(eval_model, tmp_path / "killed", on_video=kill_at_13)
    assert not (tmp_path / "killed").exists()
    kept = sorted((tmp_path / ".killed.shards").glob("*.safetensors"))
    assert [path.name for path in kept] == ["000000.safetensors", "000001.safetensors"]
    times = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr(shards_module.ShardStore, "remove", lambda self: None)
    extract(eval_model, tmp_path / "killed")
    assert times == [path.stat().st_mtime_ns for path in kept], "finished pieces were made again"
    monkeypatch.undo()
    shards_module.ShardStore(tmp_path / "killed", "").remove()
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / ".killed.shards").exists()


@pytest.mark.slow
@pytest.mark.parametrize("change", ["checkpoint", "eval_protocol", "clips", "split"])
def test_pieces_of_another_extraction_are_never_used(
    eval_model: EvalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(extract_module, "SHARD_SIZE", 5)

    def stop() -> None:
        raise KeyboardInterrupt

    clips = SyntheticClips()
    monkeypatch.setattr(extract_module, "save_features", lambda *_: stop())
    with pytest.raises(KeyboardInterrupt):
        extract(eval_model, tmp_path / "f", clips)
    monkeypatch.undo()
    monkeypatch.setattr(extract_module, "SHARD_SIZE", 5)
    eval_protocol = build_eval_protocol(eval_model.metadata)
    if change == "checkpoint":
        eval_model = small_encoder(seed=1)[1]
    elif change == "eval_protocol":
        eval_protocol = build_eval_protocol(eval_model.metadata, num_windows=2)
    elif change == "clips":
        clips = SyntheticClips(num_frames=16)
    else:
        clips.splits["1"][clips.records[0].video_id] = "train"
    extract(eval_model, tmp_path / "f", clips, eval_protocol=eval_protocol)
    extract(eval_model, tmp_path / "fresh", clips, eval_protocol=eval_protocol)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_a_damaged_piece_is_made_again(eval_model: EvalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(eval_model, tmp_path / "whole")
    folder = tmp_path / ".f.shards"
    folder.mkdir()
    (folder / "000000.safetensors").write_bytes(b"12345678{")
    (folder / ".left.tmp").write_bytes(b"")
    extract(eval_model, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_piece_with_a_flipped_bit_is_made_again(
    eval_model: EvalModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards_module.ShardStore, "remove", lambda self: None)
    extract(eval_model, tmp_path / "f")
    monkeypatch.undo()
    piece = tmp_path / ".f.shards" / "000000.safetensors"
    damaged = bytearray(piece.read_bytes())
    damaged[-5] ^= 1
    piece.write_bytes(damaged)
    whole = (tmp_path / "f").read_bytes()
    (tmp_path / "f").unlink()
    extract(eval_model, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == whole


def test_a_finished_file_is_kept_and_another_one_refused(eval_model: EvalModel, tmp_path: Path) -> None:
    out = tmp_path / "f"
    extract(eval_model, out)
    time = out.stat().st_mtime_ns
    extract(eval_model, out)
    assert out.stat().st_mtime_ns == time
    other = small_encoder(seed=1)[1]
    with pytest.raises(FileExistsError, match=r"holds other features \(other weights_sha256\); --force"):
        extract(other, out)
    assert extract(other, out, replace=True).provenance.weights_sha256 == weights_sha256(other.network)


def test_unreadable_videos_are_listed_and_have_no_row(eval_model: EvalModel, tmp_path: Path) -> None:
    clips = SyntheticClips(broken=[3, 10])
    clips.splits["1"]["c9/lost"] = "test"
    features = extract(eval_model, tmp_path / "f", clips)
    ids = [clips.records[i].video_id for i in (3, 10)]
    assert len(features.videos) == 22 == len(features.features) and not set(ids) & set(features.videos.ids)
    assert features.skipped[0] == ("c9/lost", "test", "not among the clips")
    assert features.skipped[1:] == ((ids[0], "train", "damaged"), (ids[1], "train", "damaged"))
    whole = extract(eval_model, tmp_path / "whole")
    kept = [i for i in range(24) if i not in (3, 10)]
    assert torch.allclose(features.features, whole.features[kept], atol=1e-6)
    with pytest.raises(ValueError, match="none of 24 videos could be read; the first: damaged"):
        extract(eval_model, tmp_path / "none", SyntheticClips(broken=range(24)))


def test_one_bad_image_is_an_unreadable_item_not_the_end(tmp_path: Path) -> None:
    root = make_image_folder(tmp_path / "set", classes=2, train=3, test=1)
    (root / "train" / "class0" / "bomb.png").write_bytes(BAD_IMAGES["bomb.png"] or b"")
    os.mkfifo(root / "train" / "class1" / "pipe.png")
    _, frame_model = small_encoder("frame", name="r10_small")
    features = extract_features(frame_model, open_clips(root), tmp_path / "x")
    assert len(features.videos) == 8
    assert [entry[0] for entry in features.skipped] == ["train/class0/bomb.png", "train/class1/pipe.png"]
    assert "bomb.png is not a readable image" in features.skipped[0][2]
    assert "is not a regular file" in features.skipped[1][2]


def test_values_that_are_not_finite_stop_the_extraction(tmp_path: Path) -> None:
    encoder, eval_model = small_encoder()
    encoder.get_parameter(encoder.first_conv).data[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="not finite, first for 'c0/s0_0'"):
        extract(eval_model, tmp_path / "f")


def test_a_checkpoint_is_known_by_its_hash(tmp_path: Path) -> None:
    files = [small_checkpoint(tmp_path / f"{seed}.safetensors", seed=seed) for seed in (0, 1)]
    features = [extract(load_eval_model(path), tmp_path / f"{path.stem}.features") for path in files]
    assert features[0].provenance.checkpoint_sha256 != features[1].provenance.checkpoint_sha256
    assert features[0].provenance.branch == "online" and features[0].provenance.origin == "0.safetensors"
    with pytest.raises(ValueError, match="has no branch 'target'"):
        load_eval_model(files[0], branch="target")
    with pytest.raises(FileNotFoundError, match="no run folder or weights file"):
        load_eval_model(tmp_path / "no")


@pytest.mark.parametrize("modality", ["rgb", "flow", "residual_flow", "rgbdiff", "frame"])
def test_every_modality_can_be_extracted(tmp_path: Path, modality: str) -> None:
    eval_model = small_encoder(modality, name="r18" if modality == "frame" else "s3d_tiny")[1]
    features = extract(eval_model, tmp_path / "f")
    num_windows = 1 if modality == "frame" else 4
    assert len(features.windows) == 24 * num_windows and features.provenance.eval_protocol.modality == modality


@pytest.mark.slow
def test_random_weights_give_features_that_differ(tmp_path: Path) -> None:
    made = [create_random_model("s3d_tiny", modality="rgb", seed=seed, input_size=(6, 24, 24)) for seed in (0, 0, 1)]
    found = [extract(eval_model, tmp_path / str(i)) for i, eval_model in enumerate(made)]
    assert torch.equal(found[0].features, found[1].features)
    assert not torch.allclose(found[0].features, found[2].features)
    assert found[0].windows.std(0).max() > 1e-3


def test_a_split_is_found_or_the_error_says_what_there_is(tmp_path: Path) -> None:
    clips = SyntheticClips()
    assert load_split(clips).name == "1"
    with pytest.raises(ValueError, match="no split '2'; the clips have: 1"):
        load_split(clips, "2")
    table = tmp_path / "mine.csv"
    table.write_text(f"video_id,split\n{clips.records[0].video_id},train\n")
    assert load_split(clips, str(table)).subsets == ("train",)
    clips.splits = {}
    with pytest.raises(ValueError, match="give a split; the clips have: none; give a CSV file"):
        load_split(clips)
    clips.splits = {"a": {"x": "train"}}
    with pytest.raises(ValueError, match="none of the 1 videos of split 'a'"):
        load_split(clips)


@pytest.mark.slow
def test_foreign_weights_and_parts_of_our_checkpoints_are_taken(tmp_path: Path) -> None:
    (online, eval_model), (target, _) = small_encoder(seed=0), small_encoder(seed=1)
    torch.save({"epoch": 1, "state_dict": to_coclr(online.state_dict(), None)}, tmp_path / "coclr.pth.tar")
    foreign = load_eval_model(tmp_path / "coclr.pth.tar")
    with pytest.raises(ValueError, match="do not say which modality"):
        build_eval_protocol(foreign.metadata)
    told = build_eval_protocol(foreign.metadata, modality="rgb", length=6, size=24)
    state = {f"online.encoder.{key}": value for key, value in online.state_dict().items()}
    state |= {f"target.encoder.{key}": value for key, value in target.state_dict().items()}
    metadata = eval_model.metadata.model_dump(mode="json")
    torch.save({"format": 1, "encoder": metadata, "state": state, "step": 3}, tmp_path / "last.pt")
    same = extract(eval_model, tmp_path / "a").windows
    assert torch.equal(extract(foreign, tmp_path / "b", eval_protocol=told).windows, same)
    assert torch.equal(extract(load_eval_model(tmp_path / "last.pt"), tmp_path / "c").windows, same)
    other = extract(load_eval_model(tmp_path / "last.pt", branch="target"), tmp_path / "d")
    assert other.provenance.branch == "target" and not torch.allclose(other.windows, same)
