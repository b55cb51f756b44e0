"""A batch of several workers' parts is the batch of one worker, to the last bit."""

from collections.abc import Sequence

import pytest
import torch

from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.views.batch import Batch, DeferredViews, SplitViews
from covid_cmsf.views.dataset import SampleKey
from covid_cmsf.views.merge import merge_batches
from tests.views.test_dataset import SyntheticClips, dataset

KEYS = [SampleKey(0, position, position) for position in range(7)]


class SizedClips(SyntheticClips):
    """Every other video is larger; RGB is channels-last, as decoders give it."""

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> torch.Tensor:
        raw = super().read_raw(record, modality, frame_indices)
        if int(record.video_id.split("/")[1]) % 2:
            raw = torch.nn.functional.pad(raw, (0, 3, 0, 5), value=9)
        raw += torch.randint(0, 50, raw.shape, generator=torch.Generator().manual_seed(len(self.reads))).byte()
        return raw if modality == "flow" else raw.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def split_batch(defer: bool, sizes: Sequence[int], *, broken: set[int] | None = None) -> list[Batch]:
    """One batch in parts of these sizes, whose samples follow each other."""
    data = dataset(SizedClips(broken=broken), defer=defer, modalities=("rgb", "flow", "rgbdiff"), pairing="coclr")
    samples = iter([data[key] for key in KEYS])
    return [data.collate_fn()([next(samples) for _ in range(size)]) for size in sizes]


@pytest.mark.parametrize("sizes", [(7,), (1, 1, 1, 1, 1, 1, 1), (4, 3), (2, 3, 2)])
def test_deferred_parts_have_the_frames_and_the_plan_of_the_whole(sizes: tuple[int, ...]) -> None:
    (whole,) = split_batch(True, [len(KEYS)])
    merged = merge_batches(split_batch(True, sizes))
    assert any(waiting.plan.hue_places for waiting in whole.deferred.values()), "nothing was reordered"
    for name, expected in whole.deferred.items():
        found = merged.deferred[name]
        assert isinstance(found, SplitViews) == (len(sizes) > 1) and isinstance(expected, DeferredViews)
        joined = found.copy_to("cpu")
        assert torch.equal(joined.frames, expected.frames) and joined.frames.stride() == expected.frames.stride()
        for field in ("numbers", "rows"):
            assert torch.equal(getattr(joined.plan, field), getattr(expected.plan, field)), field
        for field in ("hue_places", "num_gray", "num_blurred", "modality", "size"):
            assert getattr(joined.plan, field) == getattr(expected.plan, field), field
    for one, other in zip(whole.to("cpu").views, merged.to("cpu").views, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_parts_with_finished_views_have_those_of_the_whole_and_its_ids() -> None:
    (whole,) = split_batch(False, [7], broken={1, 5})
    merged = merge_batches(split_batch(False, [2, 5], broken={1, 5}))
    for one, other in zip(whole.views, merged.views, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    for name in ("videos", "sources", "labels"):
        assert torch.equal(getattr(whole, name), getattr(merged, name))
    assert whole.num_replaced == merged.num_replaced == 2 and whole.read_error == merged.read_error != ""
