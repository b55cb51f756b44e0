"""Accept videos that were skipped: they stay in failures.csv, but no longer make commands exit with code 3.

`accepted.csv` has the rows of failures.csv that the user has accepted. A video that fails for another reason later is
not accepted.
"""

from collections.abc import Sequence
from pathlib import Path

from covid_cmsf.clips.records import Failure, read_failures, write_failures

ACCEPTED_FILE = "accepted.csv"
ACCEPTED = "accepted: "  # in front of the reason, in lists of skipped videos


def read_accepted(store: Path) -> list[Failure]:
    """Return the failures of a store that are accepted and still there."""
    accepted = set(read_failures(store / ACCEPTED_FILE))
    return [failure for failure in read_failures(store / "failures.csv") if failure in accepted]


def accept_failures(store: Path, video_ids: Sequence[str] | None = None) -> list[Failure]:
    """Accept the failures of these videos, by default of all; return those that are newly accepted.

    ValueError if a video is not in failures.csv.
    """
    failures = {failure.video_id: failure for failure in read_failures(store / "failures.csv")}
    wanted = list(failures) if video_ids is None else list(dict.fromkeys(video_ids))
    unknown = next((video_id for video_id in wanted if video_id not in failures), None)
    if unknown is not None:
        there = ", ".join(list(failures)[:5]) or "none"
        raise ValueError(f"{unknown!r} is not in {store / 'failures.csv'}; videos there: {there}")
    before = read_accepted(store)
    added = [failures[video_id] for video_id in wanted if failures[video_id] not in before]
    if added:
        write_failures(store / ACCEPTED_FILE, [*before, *added])
    return added
