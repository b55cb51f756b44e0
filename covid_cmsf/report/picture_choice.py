"""Which thumbnails a report wants, those of most use first, and where they are named in its data."""

from collections.abc import Iterator, Sequence
from typing import Any

from covid_cmsf.report.pictures import Opened, Pictures, Wanted
from covid_cmsf.report.plan_folder import PlanFolder
from covid_cmsf.report.series import Series

KINDS = ("rgb", "flow")
Data = dict[str, Any]


def wanted_pictures(
    plans: Sequence[PlanFolder], series: Sequence[Series | None], data_facts: Sequence[Data]
) -> list[Wanted]:
    """Shown queries, samples of the data, neighbors by rank, then all other queries (RGB alone, for the map)."""
    pairs = [(plan.clips, one) for plan, one in zip(plans, series, strict=True) if one is not None and plan.clips]
    wanted = [Wanted(clips, one.ids[query], kind) for clips, one in pairs for query in one.shown for kind in KINDS]
    for facts in data_facts:
        wanted += [Wanted(facts["address"], one["id"], kind) for one in facts.get("samples", []) for kind in KINDS]
    most = max((one.num_neighbors for _, one in pairs), default=0)
    for rank in range(most):
        for clips, one in pairs:
            wanted += [Wanted(clips, video_id, kind) for video_id in _found_at(one, rank) for kind in KINDS]
    wanted += [Wanted(clips, video_id, "rgb") for clips, one in pairs for video_id in one.ids[: one.num_queries]]
    return wanted


def _found_at(series: Series, rank: int) -> Iterator[str]:
    """Ids of the neighbors at a rank, of all shown queries, in all stages."""
    for (_, ranked), places in zip(series.stages, series.places, strict=True):
        for query in series.shown:
            if places[query] >= 0 and rank < ranked.found.shape[1]:
                yield ranked.videos.ids[int(ranked.found[places[query], rank])]


def name_pictures_(data: Data, plans: Sequence[PlanFolder], pictures: Pictures) -> None:
    """Puts the names of the files into the data of series and of samples: [rgb, flow], empty where there is none."""
    for number, plan in enumerate(plans):
        series = data.get(f"series-{number}")
        if series is not None:
            series["pictures"] = [_names(pictures, plan.clips or "", video_id) for video_id in series["ids"]]
    for facts in data["report"]["data"]:
        for sample in facts.get("samples", []):
            sample["pictures"] = _names(pictures, facts["address"], sample["id"])
    data["report"]["pictures"] = f"pictures/{pictures.folder}" if pictures.folder else None


def picture_notes(pictures: Pictures, opened: Opened) -> list[str]:
    """What is not shown, and why."""
    notes = [
        f"the clips at {opened.instead or address} cannot be reached, so there are no pictures of them: {reason} "
        "(--clips says where they are now)"
        for address, reason in opened.reasons.items()
    ]
    if pictures.num_left_out:
        notes.append(f"{pictures.num_left_out} thumbnails were left out for want of space; --megabytes allows more")
    if pictures.failures:
        notes.append(f"{len(pictures.failures)} thumbnails could not be made, for example {pictures.failures[0]}")
    return notes


def _names(pictures: Pictures, clips: str, video_id: str) -> list[str]:
    return [pictures.made.get(Wanted(clips, video_id, kind), "") for kind in KINDS]
