"""Tables, lists and configurations."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from covid_cmsf.clips.acceptance import read_accepted
from covid_cmsf.clips.labels import read_noisy_labels, write_noisy_labels
from covid_cmsf.clips.records import read_failures, read_manifest, read_split, read_store_info
from covid_cmsf.clips.split_files import read_split_files
from covid_cmsf.config import load_config
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.projects.videos import _read_labels
from covid_cmsf.search.page.saved import read_decisions, read_labels
from covid_cmsf.training.config import TrainConfig
from preprocess.layouts import scan_collection
from preprocess.layouts.video_list import scan_list
from tests.factories import make_table_store
from tests.fuzz.mutations import Damage, damaged_bytes, damaged_json, damaged_table, damaged_yaml
from tests.fuzz.targets import Target

IDS = [f"class{label}/v_g{number:02d}_c01" for label in range(2) for number in range(3)]
SPLIT_LIST = "class0/v_g00_c01.avi 1\nclass1/v_g01_c01.avi 2\nA/other.avi 3\n"
SAVED_LABELS = "video,label\nv0,A\nv1,'=1\n"
DECISIONS = "first,second,decision\nv0,v1,copy\n"
FAILURES = '"video_id","stage","reason"\n"a/x","decode","no frames"\n"a/y","open","\'=1"\n'
VIDEO_LIST = "file,id,label,source,subset,start,end\nvideos/A/a.mp4,x,A,s,train,,\nvideos/A/b/c.avi,y,B,t,test,,\n"
VIDEO_LINES = '{"file": "videos/A/a.mp4", "label": "A"}\n{"file": "videos/A/b/c.avi", "start": 0, "id": "y"}\n'
KINETICS = "label,youtube_id,time_start,time_end,split\nA,x,1,2,train\nB,a,,,test\n"
SSV2 = '[{"id": "1", "template": "Holding [something]"}, {"id": 2}]'
DIVING = '[{"vid_name": "a", "label": 0}, {"vid_name": "1", "label": 1}]'
RUN = "clips: c\nmethod: {name: infonce}\nmodality: rgb\noptimizer: {lr: 0.001}\nschedule: {epochs: 3}\n"
STAGES = "pretrain: {method: {name: infonce}}\ncmsf: {method: {name: cmsf}}\n"
PLAN = "rounds: 2\nfirst: rgb\ncontrols: [continued]\ndefaults: {runtime: {threads: 1}}\nseeds: [0, 1]\n" + STAGES


def text(name: str, content: str) -> Callable[[Path], Path]:
    """Return a function that writes a text file."""

    def write(folder: Path) -> Path:
        (folder / name).write_text(content, encoding="utf-8")
        return folder / name

    return write


def write_store(folder: Path, name: str) -> Path:
    make_table_store(folder, classes=2, train=2, test=1)
    for file in ("failures.csv", "accepted.csv"):
        (folder / file).write_text(FAILURES)
    return folder / name


def store_target(name: str, file: str, read: Callable[[Path], object], damage: Damage = damaged_table) -> Target:
    return Target(name, partial(write_store, name=file), read, damage)


def write_noisy(folder: Path, name: str) -> Path:
    records = read_manifest(write_store(folder, "manifest.csv"))
    write_noisy_labels(folder / "x.txt", records, np.array(records.column("label")))
    return folder / name


def write_beside_videos(folder: Path, name: str, content: str) -> Path:
    for video in ("a.mp4", "b/c.avi", "1.webm", "x_000001_000002.mp4", "v_A_g01_c01.avi"):
        (folder / "videos" / "A" / video).parent.mkdir(parents=True, exist_ok=True)
        (folder / "videos" / "A" / video).touch()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    return folder / name


def layout_target(layout: str, name: str, content: str, damage: Damage = damaged_bytes) -> Target:
    """Return the list of a layout; errors may name the folder of all of its lists."""

    def read(path: Path) -> object:
        return scan_collection(layout, path.parent.parent / "videos", splits=path.parent)

    write = partial(write_beside_videos, name=f"lists/{name}", content=content)
    return Target(f"{layout} {name}", write, read, damage, named="lists")


def video_list_target(name: str, content: str, damage: Damage) -> Target:
    write = partial(write_beside_videos, name=name, content=content)
    return Target(f"video list {name}", write, partial(scan_list, test_fraction=None, seed=0), damage)


TEXT_TARGETS = [
    Target("labels of a page", text("labels.csv", SAVED_LABELS), lambda path: read_labels(path.parent), damaged_table),
    Target("decisions", text("copies.csv", DECISIONS), lambda path: read_decisions(path.parent), damaged_table),
    store_target("manifest", "manifest.csv", read_manifest),
    store_target("counts", "tables.json", lambda path: read_manifest(path.with_name("manifest.csv")), damaged_json),
    store_target("store", "store.json", lambda path: read_store_info(path.parent), damaged_json),
    store_target("split", "splits/1.csv", read_split),
    store_target("failures", "failures.csv", read_failures),
    store_target("accepted", "accepted.csv", lambda path: read_accepted(path.parent)),
    Target("split list", text("trainlist01.txt", SPLIT_LIST), lambda path: read_split_files(path, IDS)),
    video_list_target("x.csv", VIDEO_LIST, damaged_table),
    video_list_target("x.jsonl", VIDEO_LINES, damaged_bytes),
    Target("project labels", text("x.csv", "file,label,source\na.mp4,A,s\nb.mp4,,\n"), _read_labels, damaged_table),
    Target("noisy labels", partial(write_noisy, name="x.txt"), read_noisy_labels),
    Target(
        "noisy labels json",
        partial(write_noisy, name="x.txt.json"),
        lambda path: read_noisy_labels(path.with_name("x.txt")),
        damaged_json,
    ),
    layout_target("ucf101", "trainlist01.txt", "A/v_A_g01_c01.avi 1\n"),
    layout_target("ucf101", "trainlist02.txt", "A/v_A_g01_c01.avi 1\n"),
    layout_target("hmdb51", "A_test_split1.txt", "a.mp4 1\n1.webm 2\nv_A_g01_c01.avi 0\n"),
    layout_target("kinetics", "train.csv", KINETICS, damaged_table),
    layout_target("ssv2", "train.json", SSV2, damaged_json),
    layout_target("diving48", "Diving48_train.json", DIVING, damaged_json),
    Target("run", text("x.yaml", RUN), partial(load_config, TrainConfig), damaged_yaml),
    Target("plan", text("x.yaml", PLAN), partial(load_config, PlanConfig), damaged_yaml),
]
