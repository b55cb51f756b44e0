"""Features of all videos of a split: `covid-cmsf extract`.

The values depend on the encoder, the clips and the way they are shown, not on the number of workers, nor on whether
the extraction was killed and continued. Other batch sizes and other kinds of device change them in the last bits,
because convolutions then sum in another order.
"""

import logging
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch

from covid_cmsf import __version__
from covid_cmsf.clips.interface import Clips
from covid_cmsf.evaluation.calibration import calibrate_
from covid_cmsf.evaluation.describing import Describer, video_rows
from covid_cmsf.evaluation.features import About, Features, load_features, save_features
from covid_cmsf.evaluation.identity import clips_sha256, fingerprint
from covid_cmsf.evaluation.shards import SHARD_SIZE, Shards
from covid_cmsf.evaluation.showing import Showing, showing_for
from covid_cmsf.evaluation.shown_videos import ShownVideo, ShownVideos, load_videos
from covid_cmsf.evaluation.split import SplitVideos, split_videos
from covid_cmsf.evaluation.subjects import Subject
from covid_cmsf.evaluation.videos import Videos
from covid_cmsf.models.fingerprint import weights_sha256
from covid_cmsf.models.speed import autocast

logger = logging.getLogger(__name__)
BATCH_SIZE, IMAGE_BATCH_SIZE = 16, 128
IMAGES_IN_SHARD = 2048


def extract_features(
    subject: Subject,
    clips: Clips,
    out: Path,
    *,
    showing: Showing | None = None,
    split: str | None = None,
    batch_size: int | None = None,
    num_workers: int = 0,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    replace: bool = False,
    on_video: Callable[[], None] = lambda: None,
) -> Features:
    """Writes `out` and returns what is in it. A file that holds exactly these features already is only read.

    `showing` is what the subject's card says when left out, `batch_size` 16 windows or 128 images. A killed
    extraction continues; a file of other features is a FileExistsError unless `replace`. Videos that cannot be read
    are in `set_aside`.
    """
    out, device = Path(out), torch.device(device)
    if batch_size is None:
        batch_size = IMAGE_BATCH_SIZE if clips.still else BATCH_SIZE
    if batch_size < 1:
        raise ValueError(f"batch size {batch_size}: at least 1 is needed")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")
    autocast(precision, device)  # an unknown precision is said before anything is read
    showing = showing_for(subject.card) if showing is None else showing
    listed = split_videos(clips, split)
    data = ShownVideos(clips, listed.records, listed.parts, showing)
    if subject.uncalibrated:
        calibrate_(subject.network, data, device=device)
    about = _about(subject, clips, listed, showing, batch_size=batch_size, device=device, precision=precision)
    if out.exists():
        there = _same(out, about)
        if there is not None:
            return there
        if not replace:
            raise FileExistsError(f"{out} is there already and holds other features; --force replaces it")
    shards = Shards(out, about.fingerprint)
    describe = Describer(subject.network, data, batch_size=batch_size, device=device, precision=precision)
    _fill(shards, describe, num_workers=num_workers, on_video=on_video)
    if weights_sha256(subject.network) != about.weights_sha256:
        raise RuntimeError(f"{subject.origin} has changed while it was evaluated, so its features mean nothing")
    features = _assemble(shards, listed, about, num_shards=-(-len(listed.records) // shard_size(clips)))
    save_features(out, features)
    shards.remove()
    return features


def shard_size(clips: Clips) -> int:
    """Videos in a piece: a kill costs at most so many. Images are quicker."""
    return IMAGES_IN_SHARD if clips.still else SHARD_SIZE


def _fill(shards: Shards, describe: Describer, *, num_workers: int, on_video: Callable[[], None]) -> None:
    """Makes the pieces that are not there yet, all of them with one set of workers."""
    count = len(describe.data)
    done = shards.open()
    size = shard_size(describe.data.clips)
    pieces = {number: range(first, min(first + size, count)) for number, first in enumerate(range(0, count, size))}
    if done:
        logger.info("continuing: %d of %d pieces are there", len(done), len(pieces))
    for number in sorted(done):
        for _ in pieces[number]:
            on_video()
    todo = [number for number in pieces if number not in done]
    wanted = [video for number in todo for video in pieces[number]]
    videos = _counted(load_videos(describe.data, wanted, num_workers=num_workers), on_video)
    for number in todo:
        shards.save(number, describe(islice(videos, len(pieces[number]))))


def _counted(videos: Iterator[ShownVideo], on_video: Callable[[], None]) -> Iterator[ShownVideo]:
    for video in videos:
        yield video
        on_video()


def _about(
    subject: Subject,
    clips: Clips,
    listed: SplitVideos,
    showing: Showing,
    *,
    batch_size: int,
    device: torch.device,
    precision: str,
) -> About:
    known = {
        "encoder": subject.card.encoder,
        "origin": subject.origin,
        "checkpoint_sha256": subject.checkpoint_sha256,
        "weights_sha256": weights_sha256(subject.network),
        "part": subject.part,
        "showing": showing.model_dump(mode="json"),
        "store_sha256": clips_sha256(clips),
        "split": listed.name,
        "precision": precision,
        "device": device.type,
        "batch_size": batch_size,
        "software": f"covid-cmsf {__version__}",
    }
    videos = [[record.video_id, part] for record, part in zip(listed.records, listed.parts, strict=True)]
    # The name of the file does not decide the values, its contents do.
    decisive = {key: value for key, value in known.items() if key != "origin"}
    return About(fingerprint=fingerprint({**decisive, "videos": videos}), **known)


def _same(out: Path, about: About) -> Features | None:
    """What the file holds if it is what we were going to write."""
    try:
        there = load_features(out)
    except ValueError:
        return None
    return there if there.about.fingerprint == about.fingerprint else None


def _assemble(shards: Shards, listed: SplitVideos, about: About, *, num_shards: int) -> Features:
    """All pieces as one; videos without windows leave the table and enter `set_aside`."""
    pieces = [shards.load(number) for number in range(num_shards)]
    faults = {number: reason for piece in pieces for number, reason in piece.faults.items()}
    kept = [number for number in range(len(listed.records)) if number not in faults]
    if not kept:
        raise ValueError(
            f"none of {len(listed.records)} videos could be read; the first: {next(iter(faults.values()))}"
        )
    windows = torch.cat([piece.windows for piece in pieces if len(piece.windows)])
    if silent := int((windows == 0).all(1).sum()):
        logger.warning(
            "the features of %d of %d windows are all zero: has the encoder collapsed?", silent, len(windows)
        )
    row_of = {number: row for row, number in enumerate(kept)}
    owners = torch.tensor([row_of[int(number)] for piece in pieces for number in piece.window_videos])
    set_aside = [*listed.missing] + [
        (listed.records[number].video_id, listed.parts[number], reason) for number, reason in faults.items()
    ]
    return Features(
        videos=Videos.of(listed.records, listed.parts).take(torch.tensor(kept)),
        features=video_rows(windows, owners, len(kept)),
        windows=windows,
        window_videos=owners,
        window_starts=torch.cat([piece.window_starts for piece in pieces]),
        about=about,
        set_aside=tuple(set_aside),
    )
