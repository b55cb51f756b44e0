"""The loader over several epochs: the batches of single epochs, and the next epoch is prepared in time."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from covid_cmsf.views.batch import SplitViews
from covid_cmsf.views.dataset import SampleKey
from covid_cmsf.views.loader import EpochSampler, PartSampler, ViewLoader
from tests.views.test_dataset import assert_same, dataset


@pytest.mark.parametrize("first_batch", [0, 3])
def test_epochs_that_follow_each_other_are_those_of_single_epochs(first_batch: int) -> None:
    loader = ViewLoader(dataset(), batch_size=2, num_epochs=4, multiple=2)
    alone = ViewLoader(dataset(), batch_size=2)
    assert (loader.num_batches, loader.sampler.num_used_batches) == (5, 4)
    for epoch in (1, 2, 3):
        first = first_batch if epoch == 1 else 0
        found = list(loader.epoch(epoch, first_batch=first))
        assert len(found) == 4 - first
        for one, other in zip(found, alone.epoch(epoch, first_batch=first), strict=False):
            assert_same(one, other)
    with closing(loader.epoch(0)) as stopped:
        next(stopped)
    assert_same(next(loader.epoch(2)), next(alone.epoch(2)))


@pytest.mark.slow
def test_the_next_epoch_is_prepared_while_the_last_batches_of_one_are_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    handed_out: list[int] = []
    real = EpochSampler.__iter__

    def recorded(sampler: EpochSampler) -> Iterator[list[SampleKey]]:
        for keys in real(sampler):
            handed_out.append(keys[0].epoch)
            yield keys

    monkeypatch.setattr(EpochSampler, "__iter__", recorded)
    loader = ViewLoader(dataset(), batch_size=5, num_workers=1, num_epochs=4)
    seen: list[list[int]] = []
    for epoch in (0, 1):
        for _ in loader.epoch(epoch):
            seen.append(sorted(set(handed_out)))
    assert seen == [[0, 1], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert loader.num_seen == 20, "what is only prepared is not counted"
    loader.close()
    handed_out.clear()
    assert len(list(loader.epoch(1))) == 2 and handed_out[:2] == [1, 1], "workers serve another epoch after that"
    loader.close()


@pytest.mark.slow
@pytest.mark.parametrize("defer", [False, True])
def test_workers_share_a_batch_which_is_that_of_one_process(defer: bool) -> None:
    alone = list(ViewLoader(dataset(defer=defer), batch_size=5).epoch(1))
    loader = ViewLoader(dataset(defer=defer), batch_size=5, num_workers=2)
    assert loader.num_parts == 2
    for first, second in zip(alone, loader.epoch(1), strict=True):
        assert all(isinstance(waiting, SplitViews) for waiting in second.deferred.values())
        assert_same(first.to("cpu"), second.to("cpu"))


@pytest.mark.parametrize("num_parts", [1, 2, 3, 4])
def test_parts_of_a_batch_are_even_and_in_its_order(num_parts: int) -> None:
    whole = EpochSampler(range(10), batch_size=4, seed=0)
    parts = list(PartSampler(whole, num_parts))
    assert len(parts) == num_parts * whole.num_batches == len(PartSampler(whole, num_parts))
    assert {len(part) for part in parts} <= {4 // num_parts, -(-4 // num_parts)}
    assert [key for part in parts for key in part] == [key for keys in whole for key in keys]
