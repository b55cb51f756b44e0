"""Write a plan's size as plan.yaml, a file that people read and edit: every value says why it is what it is."""

from covid_cmsf.clips.sampling import clip_span
from covid_cmsf.projects.sizes import Footage, PlanSize

HEAD = """\
# How `covid-cmsf learn` trains the two encoders of this project. It was made for {videos:,} videos of about {frames:,}
# frames. You may edit it: the next `covid-cmsf learn` says which stages it would train again, and does so. It is an
# ordinary plan, which `covid-cmsf cotrain` runs as well (--clips {clips} --out {runs}).
# `covid-cmsf config schema plans` explains every key.
"""

BODY = """\
{rounds}
evaluation:
  windows: {windows}               # per video, evenly spread: what is embedded and searched

defaults:
  encoder: {encoder}
  views:
    length: {length}              # frames per clip, and
    stride: {stride}              # their distance: {span} frames, {seconds:.1f} s at {fps:.0f} frames per second
    size: {size}               # pixels; frames are stored a little larger
{views}
  batch_size: {batch_size}           # videos per step
  repeat: {repeat}                # how often an epoch shows every video: {steps:,} steps per epoch
  optimizer: {{lr: 1.0e-3}}
  seed: {seed}
  logging: {{interval: {interval}}}
  runtime:
    device: {device}
    workers: {workers}             # processes that decode beside the training
    threads: {threads}
    cache_gb: {cache_gb}          # decoded clips kept in memory, per stage

# First each network for itself (InfoNCE): recognize another moment of the same video among other videos.
pretrain:
  # {pretrain_steps:,} steps; the learning rate drops at the milestones.
  schedule: {{epochs: {pretrain_epochs}, milestones: {pretrain_milestones}}}
  method:
    name: infonce
    head: {{projector: supcon}}
    exclude_negatives: video
{negatives}

# Then CMSF: {proposer} proposes n videos that are alike, and each video is pulled toward the mean of its k
# nearest among them.
cmsf:
  # {cmsf_steps:,} steps.
  schedule: {{epochs: {cmsf_epochs}, milestones: {cmsf_milestones}}}
  optimizer: {{lr: {cmsf_lr}, predictor_lr_factor: 5}}
{cmsf_views}  method:
    name: cmsf
    num_candidates: {n}       # n
    k: {k}
    bank_size: {bank}        # vectors of earlier batches, in which neighbors are searched
    bank_warmup: full
    ema_momentum: {momentum}
    include_siblings: false  # clips of one source are no neighbors: they look alike anyway
    head: {{projector: supcon, reuse: true, output_batch_norm: true}}
  guides: [{{cache: mean, center: true}}]
"""

ROUNDS = """\
rounds: {rounds}                  # a round trains each network once more, guided by the other one
first: {first}"""
GUIDES = """\
# Each network is trained once more, guided by this one, which stays as it is. With `rounds: 1` also by each other.
guides: ['{guide}']"""

FEW_NEGATIVES = """\
    temperature: 0.1
    bank_size: {batch_size}          # negatives: the batch, and as many vectors of the batch before
    batch_negatives: true
    ema_momentum: 0.0"""
MANY_NEGATIVES = """\
    temperature: 0.07
    bank_size: 2048        # negatives: vectors of earlier batches, by a slowly moving copy of the network
    ema_momentum: 0.999
  batch_norm: {{mode: local, shuffle: true}}"""
MANY_VIDEOS = 4096  # on a GPU: then InfoNCE has the memory bank of Han et al.

SMALL_VIEWS = """\
    crop: [0.5, 1.0]       # no small crops, and no blur: the frames are small
    blur: 0"""
SMALL_CMSF_VIEWS = """\
  views:
    crop: [0.2, 1.0]       # smaller crops than above: with large ones few videos are soon known by heart
"""
LARGE_VIEWS = """\
    pairing: coclr         # the augmentation of Han et al."""


def plan_text(
    size: PlanSize,
    footage: Footage,
    *,
    seed: int,
    device: str,
    clips: str,
    runs: str,
    init: dict[str, str] | None = None,
    guide: str | None = None,
    notes: tuple[str, ...] = (),
) -> str:
    """Return the text of plan.yaml.

    Args:
        size: the numbers.
        footage: the videos that it was made for.
        seed: of all stages.
        device: auto, cpu, cuda, ...
        clips: the clips' name in the comment.
        runs: the plan's folder in the comment.
        init: weights that each modality starts from, by modality; none: random ones.
        guide: a network of another library that guides both (timm:NAME); None: they guide each other.
        notes: lines of comment below the head.
    """
    steps = size.steps_per_epoch(footage.num_videos)
    span = clip_span(size.length, size.stride)
    many = size.on_gpu and footage.num_videos >= MANY_VIDEOS
    head = HEAD.format(videos=footage.num_videos, frames=footage.median_frames, clips=clips, runs=runs)
    rounds = ROUNDS.format(rounds=size.rounds, first="flow" if size.on_gpu else "rgb")
    body = BODY.format(
        rounds=rounds if guide is None else GUIDES.format(guide=guide),
        proposer="the other network" if guide is None else "the guide",
        windows=size.windows,
        encoder=size.encoder,
        length=size.length,
        stride=size.stride,
        span=span,
        seconds=span / footage.fps,
        fps=footage.fps,
        size=size.size,
        views=LARGE_VIEWS if size.on_gpu else SMALL_VIEWS,
        batch_size=size.batch_size,
        repeat=size.repeat,
        steps=steps,
        seed=seed,
        interval=max(1, min(100, steps)),
        device=device,
        workers=size.workers,
        threads=size.threads,
        cache_gb=f"{size.cache_gb:g}",
        pretrain_epochs=size.pretrain_epochs,
        pretrain_milestones=_milestones(size.pretrain_epochs),
        pretrain_steps=steps * size.pretrain_epochs,
        cmsf_epochs=size.cmsf_epochs,
        cmsf_milestones=_milestones(size.cmsf_epochs),
        cmsf_lr="5.0e-4" if size.on_gpu else "1.0e-3",
        cmsf_views="" if size.on_gpu else SMALL_CMSF_VIEWS,
        cmsf_steps=steps * size.cmsf_epochs,
        negatives=(MANY_NEGATIVES if many else FEW_NEGATIVES).format(batch_size=size.batch_size),
        momentum=0.99 if many else 0.97,
        n=size.num_candidates,
        k=size.k,
        bank=size.bank_size,
    )
    text = head + "".join(f"# {note}\n" for note in notes) + body
    if init:
        text += "\n# The weights that the networks had before: training goes on from them.\npretrain_overrides:\n"
        text += "".join(f"  {modality}: {{init: '{path}'}}\n" for modality, path in init.items())
    return text


def _milestones(epochs: int) -> list[int]:
    """Return where the learning rate drops: after four fifths of the epochs."""
    return [max(1, round(0.8 * epochs))]
