"""Features files that are brought up to date: only new and changed videos are embedded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covid_cmsf.clips.records import ClipRecord, write_split
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.features.update import update_features
from tests.evaluation.factories import SyntheticClips, small_encoder

pytestmark = pytest.mark.slow


class Counted(SyntheticClips):
    """Clips with known contents, which remember what was read."""

    def __init__(self, names: list[str], changed: str = "") -> None:
        super().__init__(num_sources=2)
        known = {record.video_id: record for record in self.records}
        self.records = [replace(known[name], source_sha256=f"{name}{changed == name}") for name in names]
        self.videos_read: set[str] = set()

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: object) -> torch.Tensor:
        self.videos_read.add(record.video_id)
        return super().read_raw(record, modality, frame_indices)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def eval_model() -> EvalModel:
    return small_encoder()[1]


def update(eval_model: EvalModel, clips: Counted, folder: Path, **options: object) -> tuple[Features, int]:
    split = folder / "videos.csv"
    write_split(split, {record.video_id: "train" for record in clips.records})
    protocol = build_eval_protocol(eval_model.metadata, num_windows=2)
    out = folder / "rgb.features"
    return update_features(eval_model, clips, out, eval_protocol=protocol, split=str(split), **options)  # type: ignore[arg-type]


ALL = [f"c{c}/s{s}_{i}" for c in range(3) for s in range(2) for i in range(2)]


def test_only_new_and_changed_videos_are_read_and_removed_ones_leave(eval_model: EvalModel, tmp_path: Path) -> None:
    first, count = update(eval_model, Counted(ALL[:8]), tmp_path)
    assert count == 8 and first.videos.ids == tuple(ALL[:8])
    clips = Counted(ALL[2:], changed=ALL[4])
    second, count = update(eval_model, clips, tmp_path)
    assert clips.videos_read == {*ALL[8:], ALL[4]} and count == 5
    whole = extract_features(
        eval_model,
        Counted(ALL[2:], changed=ALL[4]),
        tmp_path / "whole",
        eval_protocol=second.provenance.eval_protocol,
        split=str(tmp_path / "videos.csv"),
    )
    assert second.videos.ids == whole.videos.ids and second.provenance.fingerprint == whole.provenance.fingerprint
    assert torch.equal(second.window_videos, whole.window_videos)
    assert torch.equal(second.window_starts, whole.window_starts)
    torch.testing.assert_close(second.features, whole.features)
    clips = Counted(ALL[2:], changed=ALL[4])
    third, count = update(eval_model, clips, tmp_path)
    assert not clips.videos_read and count == 0 and torch.equal(third.features, second.features)
    assert not list(tmp_path.glob(".*"))


def test_other_weights_embed_everything(eval_model: EvalModel, tmp_path: Path) -> None:
    update(eval_model, Counted(ALL[:4]), tmp_path)
    assert update(small_encoder(seed=1)[1], Counted(ALL[:4]), tmp_path)[1] == 4


def test_rows_of_another_file_are_used(eval_model: EvalModel, tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    first, _ = update(eval_model, Counted(ALL), tmp_path / "stage")
    clips = Counted(ALL)
    second, count = update(eval_model, clips, tmp_path, known=[tmp_path / "stage" / "rgb.features", tmp_path / "none"])
    assert not clips.videos_read and count == 0 and torch.equal(first.windows, second.windows)


def test_labels_are_added_without_embedding_anything(eval_model: EvalModel, tmp_path: Path) -> None:
    update(eval_model, Counted(ALL[:4]), tmp_path, labels={})
    labels = {ALL[0]: "dog", ALL[2]: "cat"}
    labeled, count = update(eval_model, Counted(ALL[:4]), tmp_path, labels=labels)
    assert count == 0 and labeled.videos.class_names == ("cat", "dog")
    assert labeled.videos.labels.tolist() == [1, -1, 0, -1]
    bare, _ = update(eval_model, Counted(ALL[:4]), tmp_path, labels={})
    assert bare.videos.labels.tolist() == [-1] * 4
