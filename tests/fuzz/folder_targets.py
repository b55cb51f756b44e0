"""Archives of videos, folders of runs of others, and configurations of transformers."""

import io
import json
import tarfile
from functools import partial
from pathlib import Path

import torch
from hypothesis import strategies as st

from covid_cmsf.cotrain.run import build_graphs
from covid_cmsf.cotrain.stage import write_stage_result
from covid_cmsf.models.transformers_networks import _read_settings
from covid_cmsf.report.comparison import compare
from covid_cmsf.report.curves import build_lines
from covid_cmsf.report.page_data import curve_values, plan_values
from covid_cmsf.report.provenance import plan_provenance
from covid_cmsf.report.runs import read_runs
from covid_cmsf.training.checkpoints import Checkpoints
from preprocess.archives import read_member
from preprocess.layouts import scan_collection
from tests.factories import make_table_store
from tests.fuzz.mutations import (
    TEXTS,
    Damage,
    Draw,
    Strategy,
    damaged_archive,
    damaged_bytes,
    damaged_json,
    damaged_table,
    damaged_yaml,
)
from tests.fuzz.targets import Target
from tests.preprocess.test_archives import WRITERS, sample
from tests.report.plan_factories import begin_stage, plan_config

FACTS = {"label": "A", "source": "s", "id": "x", "caption": "y", "duration": [1, 2]}
SAMPLES = {**sample("a/0001", 1, **FACTS), **sample("b/0002", 0, label="B"), "b/3.mp4": b"v", "b/3.txt": b"C"}
HF_ROWS = (
    '{"file_name": "a.mp4", "label": "y", "label_number": 0, "source": "s"}\n{"file_name": "b/c.avi", "id": "X"}\n'
)
HF_TABLE = "file_name,label,label_number,id,source,subset\na.mp4,y,0,i,s,train\nb/c.avi,x,1,j,t,test\n"


RETRIEVAL = {"recall": {"1": 50.0, "5": 75.0}, "interval": {"1": [40.0, 60.0]}, "chance": 25.0, "effective_rank": 3.5}
RETRIEVAL |= {"protocol": "clean", "features": [{"store_sha256": "ab" * 32, "num_skipped": 1}]}
LINEAR = {"scores": {"top1": 60.0, "interval": [50.0, 70.0]}}
SUMMARY = {"progress": {"seconds": 20.0}, "guides": {"guide_rgb": {"sha256": "ab" * 32}}}
STAGE_RESULT = {"r1": 50.0, "chance": 25.0, "r1_interval": [40.0, 60.0], "linear": 60.0, "num_classes": 4}
STAGE_RESULT |= {"effective_rank": 3.5, "seconds": 20.0, "seconds_last_start": 30.0}
CHECKPOINTS = [{"file": "step-00000120-epoch-0003.pt", "sha256": "cd" * 32, "epoch": 3}]


# Archives


@st.composite
def _changed_headers(draw: Draw, valid: bytes) -> bytes:
    """Change an entry of a member's header; its checksum is right again."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(valid)) as source:
        members = source.getmembers()
        chosen = draw(st.sampled_from(members))
        with tarfile.open(fileobj=packed, mode="w", format=draw(st.sampled_from([0, 1, 2]))) as archive:
            for member in members:
                file = source.extractfile(member)
                data = b"" if file is None else file.read()
                if member is chosen:
                    _change(draw, member)
                    data = draw(damaged_bytes(data))
                    member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return packed.getvalue()


def _change(draw: Draw, member: tarfile.TarInfo) -> None:
    texts = [text for text in TEXTS if len(text) < 90]
    match draw(st.sampled_from(["name", "type", "link", "data"])):
        case "name":
            member.name = draw(st.sampled_from(texts)).replace("\udcff", "") + draw(st.sampled_from(["", ".mp4"]))
        case "type":
            member.type = draw(st.sampled_from([tarfile.DIRTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"?"]))
        case "link":
            member.type = draw(st.sampled_from([tarfile.SYMTYPE, tarfile.LNKTYPE]))
            member.linkname = draw(st.sampled_from(["/etc/passwd", "../x", "a/0001.mp4"]))


def damaged_tar(valid: bytes) -> Strategy:
    """Change a member of a tar and make its checksum fit, or damage it anywhere."""
    return _changed_headers(valid) | damaged_bytes(valid)


def read_archive(path: Path) -> object:
    videos = scan_collection("archive", path).videos
    return [read_member(video.path, video.member) for video in videos if video.member is not None]


def archive_target(kind: str, damage: Damage) -> Target:
    def write(folder: Path) -> Path:
        return WRITERS[kind](folder / f"x.{kind}", SAMPLES)

    return Target(f"archive {kind}", write, read_archive, damage)


def write_huggingface(folder: Path, name: str, content: str) -> Path:
    root = folder / "videos"
    for video in ("a.mp4", "b/c.avi"):
        (root / video).parent.mkdir(parents=True, exist_ok=True)
        (root / video).touch()
    (root / name).write_text(content)
    return root / name


def huggingface_target(name: str, content: str, damage: Damage) -> Target:
    write = partial(write_huggingface, name=name, content=content)
    return Target(
        f"huggingface {name}", write, lambda path: scan_collection("huggingface", path.parent), damage, "videos"
    )


# Runs


def write_index(folder: Path) -> Path:
    values = {"value": torch.zeros(10), "epoch": 0, "encoder": {}, "state": {}}
    for step in (1, 2):
        Checkpoints(folder / "checkpoints").save(values, epoch=0, batch=step, step=step, kept=True, keep=2)
    return folder / "checkpoints" / "index.json"


def write_plan(folder: Path, name: str) -> Path:
    """Write a plan of a start and a round, of which the first is done; everything but features and answers."""
    clips, out = make_table_store(folder / "clips", classes=2, train=2, test=1), folder / "plan"
    plan = plan_config(clips, controls=[], rounds=1)
    out.mkdir()
    (out / "plan.json").write_text(plan.model_dump_json(indent=1))
    (stages,) = build_graphs(plan, out, plan_dir=out)
    for stage in stages[:2]:
        begin_stage(stage, num_lines=3)
        files = {"retrieval": RETRIEVAL, "linear": LINEAR, "summary": SUMMARY}
        for kind, values in files.items():
            (stage.folder / f"{kind}.json").write_text(json.dumps(values))
        write_stage_result(stage, STAGE_RESULT)
        (stage.folder / "checkpoints").mkdir()
        (stage.folder / "checkpoints" / "index.json").write_text(json.dumps(CHECKPOINTS))
    return out / name


def read_plan(path: Path) -> object:
    """Do what a report does with everything but features and pictures."""
    root = next(parent for parent in path.parents if parent.name == "plan")
    plans = read_runs([root])
    lines = build_lines(plans)
    data = [plan_values(plans, [None]), compare(plans), curve_values(lines, {}), *map(plan_provenance, plans)]
    return json.dumps(data)


def plan_target(name: str, damage: Damage = damaged_json) -> Target:
    """Return a file of a foreign plan; a stage may be named in errors rather than its file."""
    return Target(f"run {name.rpartition('/')[2]}", partial(write_plan, name=name), read_plan, damage, "infonce-rgb")


def damaged_lines(valid: bytes) -> Strategy:
    """Change one value of one of several lines of JSON."""
    lines = valid.splitlines()
    last = damaged_json(lines[-1]).map(lambda line: b"\n".join([*lines[:-1], line]) + b"\n")
    return last | damaged_bytes(valid)


# Folders of transformers


def write_transformers(folder: Path, name: str) -> Path:
    config = {"architectures": ["VideoMAEModel"], "num_frames": 4, "image_size": 32, "hidden_size": 16}
    processor = {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}, "rescale_factor": 1 / 255}
    processor |= {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "do_resize": True}
    for file, values in {"config.json": config, "preprocessor_config.json": processor}.items():
        (folder / file).write_text(json.dumps(values))
    return folder / name


def transformers_target(name: str) -> Target:
    """Return a file that is read before transformers sees it; what transformers does with it is not ours."""
    write = partial(write_transformers, name=name)
    return Target(f"transformers {name}", write, lambda path: _read_settings(path.parent, {}), damaged_json)


FOLDER_TARGETS = [
    archive_target("tar", damaged_tar),
    archive_target("zip", damaged_archive),
    huggingface_target("metadata.jsonl", HF_ROWS, damaged_lines),
    huggingface_target("metadata.csv", HF_TABLE, damaged_table),
    Target("checkpoints", write_index, lambda path: Checkpoints(path.parent).load(), damaged_json, "checkpoints"),
    plan_target("plan.json"),
    plan_target("infonce-rgb/stage.json"),
    plan_target("infonce-rgb/summary.json"),
    plan_target("infonce-rgb/retrieval.json"),
    plan_target("infonce-rgb/linear.json"),
    plan_target("infonce-rgb/checkpoints/index.json"),
    plan_target("infonce-rgb/config.yaml", damaged_yaml),
    plan_target("infonce-rgb/metrics.jsonl", damaged_lines),
    plan_target("infonce-rgb/environment.jsonl", damaged_lines),
    transformers_target("config.json"),
    transformers_target("preprocessor_config.json"),
]
