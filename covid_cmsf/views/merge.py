"""Join the parts of a batch that several workers made: the same batch, to the last bit, as if one had made it."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.views.batch import Batch, DeferredViews, SplitViews
from covid_cmsf.views.batch_augment import BatchAugment


def merge_batches(parts: Sequence[Batch], *, pin: bool = False) -> Batch:
    """Return the batch of all parts' samples, in their order.

    Deferred frames stay in the parts' pieces; with `pin`, what is new is pinned, as the pieces are already.
    """
    if len(parts) == 1:
        return parts[0]

    def joined(tensors: Iterable[Tensor]) -> Tensor:
        made = torch.cat(list(tensors))
        return made.pin_memory() if pin else made

    first = parts[0]
    return Batch(
        views=tuple(
            {name: joined(part.views[number][name] for part in parts) for name in pair}
            for number, pair in enumerate(first.views)
        ),
        videos=joined(part.videos for part in parts),
        sources=joined(part.sources for part in parts),
        labels=joined(part.labels for part in parts),
        num_replaced=sum(part.num_replaced for part in parts),
        read_error=next((part.read_error for part in parts if part.read_error), ""),
        deferred={name: _merge_views([_deferred(part, name) for part in parts], pin=pin) for name in first.deferred},
    )


def _deferred(part: Batch, name: str) -> DeferredViews:
    found = part.deferred[name]
    assert isinstance(found, DeferredViews)
    return found


def _merge_views(parts: Sequence[DeferredViews], *, pin: bool) -> SplitViews:
    """Order the clips as `plan_batch` would have: stacked view by view, then sorted by the place of the hue."""
    plans, view_numbers = [part.plan for part in parts], parts[0].view_numbers
    stacked: list[tuple[int, int]] = []  # (part, row in it)
    for view in range(len(view_numbers)):
        for number, part in enumerate(parts):
            size = len(part.frames) // len(view_numbers)
            places = part.plan.rows[view * size : (view + 1) * size].tolist()
            stacked += [(number, place) for place in places]
    hue_places = [_hue_place(plans[number], row) for number, row in stacked]
    order = sorted(range(len(stacked)), key=lambda clip: -hue_places[clip])
    rows = [stacked[clip] for clip in order]
    gray, blurred = _special_rows(parts)
    gray_rows, blurred_rows = ([row for row, one in enumerate(rows) if one in chosen] for chosen in (gray, blurred))
    plan = BatchAugment(
        modality=plans[0].modality,
        size=plans[0].size,
        hue_places=tuple(hue_places[clip] for clip in order if hue_places[clip] >= 0),
        num_gray=len(gray_rows),
        num_blurred=len(blurred_rows),
        numbers=torch.stack([plans[number].numbers[row] for number, row in rows]),
        rows=torch.tensor([*np.argsort(order), *gray_rows, *blurred_rows]),
    )
    first = np.cumsum([0, *(len(part.frames) for part in parts)])  # clips before each part
    clip_places = torch.tensor(np.argsort([first[number] + row for number, row in rows]))
    if pin:
        plan = plan.with_tensors(plan.numbers.pin_memory(), plan.rows.pin_memory())
        clip_places = clip_places.pin_memory()
    return SplitViews(tuple(part.frames for part in parts), clip_places, plan, view_numbers)


def _hue_place(plan: BatchAugment, row: int) -> int:
    return plan.hue_places[row] if row < len(plan.hue_places) else -1


def _special_rows(parts: Sequence[DeferredViews]) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return the (part, row) of gray clips, and of blurred ones."""
    gray: set[tuple[int, int]] = set()
    blurred: set[tuple[int, int]] = set()
    for number, part in enumerate(parts):
        rest = part.plan.rows[len(part.frames) :].tolist()
        gray |= {(number, row) for row in rest[: part.plan.num_gray]}
        blurred |= {(number, row) for row in rest[part.plan.num_gray :]}
    return gray, blurred
