"""Features from clips: values, independence of workers and batches, killing and continuing, broken videos."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.evaluation import extraction, shards
from covid_cmsf.evaluation.extraction import extract_features
from covid_cmsf.evaluation.features import Features, load_features
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from covid_cmsf.evaluation.showing import showing_for
from covid_cmsf.evaluation.shown_videos import ShownVideos
from covid_cmsf.evaluation.split import split_videos
from covid_cmsf.evaluation.subjects import Subject, random_subject, subject_from
from covid_cmsf.models.fingerprint import weights_sha256
from covid_cmsf.models.weights.coclr import to_coclr
from tests.evaluation.made_up import MadeUpClips, small_checkpoint, small_encoder


@pytest.fixture
def subject() -> Subject:
    return small_encoder()[1]


def extract(subject: Subject, out: Path, clips: MadeUpClips | None = None, **options: object) -> Features:
    return extract_features(subject, clips or MadeUpClips(), out, **options)  # type: ignore[arg-type]


def test_rows_are_means_of_unit_features_of_windows(subject: Subject, tmp_path: Path) -> None:
    clips = MadeUpClips()
    features = extract(subject, tmp_path / "f", clips)
    data = ShownVideos(clips, clips.records, ["train"] * 24, features.about.showing)
    for row in (0, 7, 23):
        views = torch.stack(list(data[row].views(data.showing, 20.0, torch.device("cpu"))))
        with torch.inference_mode():
            windows = subject.network(views)
        mine = features.windows[features.window_videos == row]
        assert (mine - windows).abs().max() < 1e-5 * windows.abs().max()
        assert torch.allclose(features.features[row], F.normalize(windows, dim=1).mean(0), atol=1e-6)
    assert features.videos.parts.count("test") == 6 and features.videos.class_names == ("c0", "c1", "c2")
    assert features.window_starts[:4].tolist() == [0, 3, 6, 9]


def test_what_is_read_is_what_was_written(subject: Subject, tmp_path: Path) -> None:
    features = extract(subject, tmp_path / "f")
    again = load_features(tmp_path / "f")
    assert again.about == features.about and again.videos.ids == features.videos.ids
    for name in ("features", "windows", "window_videos", "window_starts"):
        assert torch.equal(getattr(again, name), getattr(features, name))
    assert torch.equal(again.videos.labels, features.videos.labels)


def test_workers_do_not_change_a_bit(subject: Subject, tmp_path: Path) -> None:
    extract(subject, tmp_path / "none")
    extract(subject, tmp_path / "one", num_workers=1)
    assert (tmp_path / "none").read_bytes() == (tmp_path / "one").read_bytes()


def test_batch_size_changes_the_last_bits_at_most(subject: Subject, tmp_path: Path) -> None:
    usual = extract(subject, tmp_path / "16")
    for batch_size in (1, 7):
        other = extract(subject, tmp_path / str(batch_size), batch_size=batch_size)
        assert (other.features - usual.features).abs().max() < 1e-6
        assert evaluate_retrieval(other).recall == evaluate_retrieval(usual).recall


@pytest.mark.parametrize("protocol", ["clean", "coclr"])
def test_extracting_twice_gives_the_same_bytes(subject: Subject, tmp_path: Path, protocol: str) -> None:
    showing = showing_for(subject.card, protocol=protocol)
    for name in ("a", "b"):
        extract(subject, tmp_path / name, showing=showing)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_encoder_is_not_changed(tmp_path: Path) -> None:
    encoder, subject = small_encoder()
    before = weights_sha256(encoder)
    extract(subject, tmp_path / "f")
    assert weights_sha256(encoder) == before and not encoder.training


def test_an_encoder_that_changes_is_noticed(tmp_path: Path) -> None:
    encoder, subject = small_encoder()

    class Restless(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, clip: torch.Tensor) -> torch.Tensor:
            next(self.encoder.buffers()).add_(0.1)
            return self.encoder(clip)

    with pytest.raises(RuntimeError, match="has changed while it was evaluated"):
        extract(Subject(Restless(), subject.card, "restless"), tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_killed_extraction_continues_to_the_same_bytes(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD_SIZE", 5)
    monkeypatch.setattr(extraction, "SHARD_SIZE", 5)
    extract(subject, tmp_path / "whole")
    seen = []

    def kill_at_13() -> None:
        seen.append(1)
        if len(seen) == 13:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(subject, tmp_path / "killed", on_video=kill_at_13)
    assert not (tmp_path / "killed").exists()
    kept = sorted((tmp_path / ".killed.shards").iterdir())
    assert [path.name for path in kept] == ["000000.safetensors", "000001.safetensors"]
    times = [path.stat().st_mtime_ns for path in kept]
    monkeypatch.setattr(shards.Shards, "remove", lambda self: None)
    extract(subject, tmp_path / "killed")
    assert times == [path.stat().st_mtime_ns for path in kept], "finished pieces were made again"
    monkeypatch.undo()
    shards.Shards(tmp_path / "killed", "").remove()
    assert (tmp_path / "killed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert not (tmp_path / ".killed.shards").exists()


@pytest.mark.parametrize("change", ["checkpoint", "showing", "clips", "split"])
def test_pieces_of_another_extraction_are_never_used(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(extraction, "SHARD_SIZE", 5)

    def stop() -> None:
        raise KeyboardInterrupt

    clips = MadeUpClips()
    monkeypatch.setattr(extraction, "save_features", lambda *_: stop())
    with pytest.raises(KeyboardInterrupt):
        extract(subject, tmp_path / "f", clips)
    monkeypatch.undo()
    monkeypatch.setattr(extraction, "SHARD_SIZE", 5)
    showing = showing_for(subject.card)
    if change == "checkpoint":
        subject = small_encoder(seed=1)[1]
    elif change == "showing":
        showing = showing_for(subject.card, num_windows=2)
    elif change == "clips":
        clips = MadeUpClips(num_frames=16)
    else:
        clips.splits["1"][clips.records[0].video_id] = "train"
    extract(subject, tmp_path / "f", clips, showing=showing)
    extract(subject, tmp_path / "fresh", clips, showing=showing)
    assert (tmp_path / "f").read_bytes() == (tmp_path / "fresh").read_bytes()


def test_a_damaged_piece_is_made_again(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    extract(subject, tmp_path / "whole")
    folder = tmp_path / ".f.shards"
    folder.mkdir()
    (folder / "000000.safetensors").write_bytes(b"12345678{")
    (folder / ".left.tmp").write_bytes(b"")
    extract(subject, tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_finished_file_is_kept_and_another_one_refused(subject: Subject, tmp_path: Path) -> None:
    out = tmp_path / "f"
    extract(subject, out)
    time = out.stat().st_mtime_ns
    extract(subject, out)
    assert out.stat().st_mtime_ns == time
    other = small_encoder(seed=1)[1]
    with pytest.raises(FileExistsError, match="holds other features; --force"):
        extract(other, out)
    assert extract(other, out, replace=True).about.weights_sha256 == weights_sha256(other.network)


def test_unreadable_videos_are_listed_and_have_no_row(subject: Subject, tmp_path: Path) -> None:
    clips = MadeUpClips(broken=[3, 10])
    clips.splits["1"]["c9/lost"] = "test"
    features = extract(subject, tmp_path / "f", clips)
    ids = [clips.records[i].video_id for i in (3, 10)]
    assert len(features.videos) == 22 == len(features.features) and not set(ids) & set(features.videos.ids)
    assert features.set_aside[0] == ("c9/lost", "test", "not among the clips")
    assert features.set_aside[1:] == ((ids[0], "train", "damaged"), (ids[1], "train", "damaged"))
    whole = extract(subject, tmp_path / "whole")
    kept = [i for i in range(24) if i not in (3, 10)]
    assert torch.allclose(features.features, whole.features[kept], atol=1e-6)
    with pytest.raises(ValueError, match="none of 24 videos could be read; the first: damaged"):
        extract(subject, tmp_path / "none", MadeUpClips(broken=range(24)))


def test_values_that_are_not_finite_stop_the_extraction(tmp_path: Path) -> None:
    encoder, subject = small_encoder()
    encoder.get_parameter(encoder.first_conv).data[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="not finite, first for 'c0/s0_0'"):
        extract(subject, tmp_path / "f")


def test_a_checkpoint_is_known_by_its_hash(tmp_path: Path) -> None:
    files = [small_checkpoint(tmp_path / f"{seed}.safetensors", seed=seed) for seed in (0, 1)]
    features = [extract(subject_from(path), tmp_path / f"{path.stem}.features") for path in files]
    assert features[0].about.checkpoint_sha256 != features[1].about.checkpoint_sha256
    assert features[0].about.part == "online" and features[0].about.origin == "0.safetensors"
    with pytest.raises(ValueError, match="has no part 'target'"):
        subject_from(files[0], part="target")
    with pytest.raises(FileNotFoundError, match="no weights file"):
        subject_from(tmp_path / "no")


@pytest.mark.parametrize("modality", ["rgb", "flow", "rgbdiff", "frame"])
def test_every_modality_can_be_extracted(tmp_path: Path, modality: str) -> None:
    subject = small_encoder(modality, name="r18" if modality == "frame" else "s3d_tiny")[1]
    features = extract(subject, tmp_path / "f")
    num_windows = 1 if modality == "frame" else 4
    assert len(features.windows) == 24 * num_windows and features.about.showing.modality == modality


def test_random_weights_give_features_that_differ(tmp_path: Path) -> None:
    made = [random_subject("s3d_tiny", modality="rgb", seed=seed, input_size=(6, 24, 24)) for seed in (0, 0, 1)]
    found = [extract(subject, tmp_path / str(i)) for i, subject in enumerate(made)]
    assert torch.equal(found[0].features, found[1].features)
    assert not torch.allclose(found[0].features, found[2].features)
    assert found[0].windows.std(0).max() > 1e-3


def test_a_split_is_found_or_the_error_says_what_there_is(tmp_path: Path) -> None:
    clips = MadeUpClips()
    assert split_videos(clips).name == "1"
    with pytest.raises(ValueError, match="no split '2'; there are: 1"):
        split_videos(clips, "2")
    table = tmp_path / "mine.csv"
    table.write_text(f"video_id,split\n{clips.records[0].video_id},train\n")
    assert split_videos(clips, str(table)).parts == ("train",)
    clips.splits = {}
    with pytest.raises(ValueError, match="say which split; there are: none; name a CSV file"):
        split_videos(clips)
    clips.splits = {"a": {"x": "train"}}
    with pytest.raises(ValueError, match="none of the 1 videos of split 'a'"):
        split_videos(clips)


def test_foreign_weights_and_parts_of_our_checkpoints_are_taken(tmp_path: Path) -> None:
    (online, subject), (target, _) = small_encoder(seed=0), small_encoder(seed=1)
    torch.save({"epoch": 1, "state_dict": to_coclr(online.state_dict(), None)}, tmp_path / "coclr.pth.tar")
    foreign = subject_from(tmp_path / "coclr.pth.tar")
    with pytest.raises(ValueError, match="do not say which modality"):
        showing_for(foreign.card)
    told = showing_for(foreign.card, modality="rgb", length=6, size=24)
    state = {f"online.encoder.{key}": value for key, value in online.state_dict().items()}
    state |= {f"target.encoder.{key}": value for key, value in target.state_dict().items()}
    card = subject.card.model_dump(mode="json")
    torch.save({"format": 1, "encoder": card, "state": state, "step": 3}, tmp_path / "last.pt")
    same = extract(subject, tmp_path / "a").windows
    assert torch.equal(extract(foreign, tmp_path / "b", showing=told).windows, same)
    assert torch.equal(extract(subject_from(tmp_path / "last.pt"), tmp_path / "c").windows, same)
    other = extract(subject_from(tmp_path / "last.pt", part="target"), tmp_path / "d")
    assert other.about.part == "target" and not torch.allclose(other.windows, same)
