"""Build a report: a folder with the page, its scripts, its data and the plotting library. Nothing is downloaded."""

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from covid_cmsf import __version__
from covid_cmsf.files import read_text, write_text_atomic
from covid_cmsf.pages.asset_files import copy_assets, write_if_changed
from covid_cmsf.pages.data_scripts import data_script, write_data
from covid_cmsf.pages.projection import has_umap
from covid_cmsf.pages.thumbnails import STYLES, ClipCollections, ThumbnailSet, make_thumbnails
from covid_cmsf.report.comparison import compare
from covid_cmsf.report.curves import build_lines, draw_curve_figures
from covid_cmsf.report.dataset_summary import sample_records, summarize_dataset
from covid_cmsf.report.file_watch import FileCache, Stamp, read_input_stamps
from covid_cmsf.report.gallery import Gallery, build_gallery
from covid_cmsf.report.line_styles import MODALITY_COLORS
from covid_cmsf.report.noisy_gallery import noisy_galleries
from covid_cmsf.report.page_data import (
    add_thumbnail_names_,
    choose_thumbnails,
    curve_values,
    existing_figures,
    features_command,
    plan_values,
    thumbnail_notes,
)
from covid_cmsf.report.provenance import plan_provenance, shell_command
from covid_cmsf.report.ranking import RankedStage, rank_stage
from covid_cmsf.report.runs import PlanRun, StageRun, read_runs


@dataclass(frozen=True)
class ReportOptions:
    """Options of `covid-cmsf report`."""

    num_queries: int = 60
    num_neighbors: int = 8
    always_shown: tuple[str, ...] = ()  # ids of videos that are always in the gallery
    clips: str | None = None  # path of the clips, if they have moved
    megabytes: float = 25.0  # size of the folder; thumbnails are made to fit
    workers: int = 2
    umap: bool = True  # if it is installed
    pictures: bool = True
    seed: int = 0


METADATA_FILE = "report.json"  # marks a folder as a report
PLOTLY = "plotly-cartesian.min.js"  # lines, bars, heat maps: a third of the whole library, and faster to start
# V8 then compiles all of it on another thread: measured, the first chart appears after 1.1 s instead of 1.6 s.
COMPILE_HINT = b"//# allFunctionsCalledOnLoad\n"


def prepare_folder(out: Path, paths: Sequence[Path]) -> None:
    """Create the folder and mark it as a report of `paths`; ValueError if it exists and is something else.

    It is marked before anything else is written, so that an interrupted report can be written again.
    """
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; --out must be a folder")
    if out.is_dir() and any(out.iterdir()) and not (out / METADATA_FILE).is_file():
        raise ValueError(f"{out} is not empty and not a report; give --out a new folder")
    out.mkdir(parents=True, exist_ok=True)
    if not (out / METADATA_FILE).is_file():
        write_metadata(out, {"paths": [str(path) for path in paths], "unfinished": True})
    for name in ("assets", "data", "pictures", "figures"):
        (out / name).mkdir(parents=True, exist_ok=True)


def copy_page(out: Path) -> None:
    """Write index.html and assets/."""
    copy_assets(out, "covid_cmsf.report")
    library = files("covid_cmsf.report") / "vendor" / PLOTLY
    write_if_changed(out / "assets" / PLOTLY, COMPILE_HINT + library.read_bytes())


def write_metadata(out: Path, values: dict[str, Any]) -> None:
    """Write report.json: first of all files, and again with everything as the last."""
    write_text_atomic(out / METADATA_FILE, json.dumps(values, indent=1) + "\n")


def read_metadata(out: Path) -> dict[str, Any]:
    """Read report.json; FileNotFoundError if there is no report."""
    path = out / METADATA_FILE
    if not path.is_file():
        raise FileNotFoundError(f"no report in {out}; write one: covid-cmsf report RUN_OR_PLAN --out {out}")
    values: dict[str, Any] = json.loads(read_text(path))
    return values


logger = logging.getLogger(__name__)
Data = dict[str, Any]


class Report:
    """A report that can be written repeatedly during training; only what has changed is computed again."""

    def __init__(self, paths: Sequence[Path], out: Path, options: ReportOptions) -> None:
        self.paths, self.out, self.options = list(paths), out, options
        self.opened = ClipCollections(options.clips)
        self.input_stamps: dict[Path, Stamp] = {}  # of the files behind the last version
        self._cache = FileCache()
        self._datasets: dict[str, Data] = {}
        self._style_name = ""

    def write(self, *, live: float = 0.0, figures: bool = True) -> Data:
        """Write the folder and return its metadata.

        The page checks for newer data every `live` seconds; 0: never. Without `figures` existing figures stay.
        """
        input_stamps = read_input_stamps(self.paths)  # before reading, so that a change during reading is noticed
        plans = read_runs(self.paths)
        prepare_folder(self.out, self.paths)
        copy_page(self.out)
        notes = [note for plan in plans for stage in plan.stages for note in stage.notes]
        lines = build_lines(plans)
        folder = self.out / "figures"
        drawn = draw_curve_figures(lines, folder) if figures else existing_figures(folder, lines)
        gallery = [self._build_gallery(plan, notes) for plan in plans]
        self._check_chosen(gallery)
        notes += [
            f"{plan.name} has no features yet, so there are no neighbors, no map and no R@1: {features_command(plan)}"
            for plan in plans
            if plan.config is None and not any(stage.features for stage in plan.stages)
        ]
        data: Data = {
            "report": {
                "software": f"covid-cmsf {__version__}",
                "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
                "live": live,
                "command": self._command(),
                "command_of_several": self._command("OTHER"),
                "command_of_clips": self._command(clips="CLIPS"),
                "umap": has_umap(),
                "plans": plan_values(plans, gallery),
                "colors": MODALITY_COLORS,
                "comparison": compare(plans) if len(plans) > 1 else None,
                "curves": curve_values(lines, drawn),
                "noisy": self._noisy(plans, notes),
                "data": [self._clips(address) for address in dict.fromkeys(plan.clips for plan in plans) if address],
            },
            "provenance": [{"name": plan.name, **plan_provenance(plan)} for plan in plans],
        }
        for number, one in enumerate(gallery):
            if one is not None:
                data[f"gallery-{number}"] = one.values()
                data[f"neighbors-{number}"] = one.neighbors()
                data[f"map-{number}"] = one.maps()
        pictures = self._pictures(plans, gallery, data)
        add_thumbnail_names_(data, plans, pictures)
        data["report"]["notes"] = [*notes, *thumbnail_notes(pictures, self.opened)]
        self.input_stamps = input_stamps
        return self._finish(write_data(self.out / "data", data.items()), data["report"]["notes"])

    def _command(self, *others: str, clips: str | None = None) -> str:
        """Return the command that writes this report again, or one of other folders or clips, too."""
        clips = clips or self.options.clips
        address = [] if clips is None else ["--clips", clips]
        return shell_command(["covid-cmsf", "report", *map(str, self.paths), *others, "--out", str(self.out), *address])

    def _build_gallery(self, plan: PlanRun, notes: list[str]) -> Gallery | None:
        gallery, new_notes = build_gallery(
            plan.first_seed.stages,
            self._rank,
            num_shown=self.options.num_queries,
            num_neighbors=self.options.num_neighbors,
            always_shown=self.options.always_shown,
            seed=self.options.seed,
        )
        notes += [f"{plan.name}: {note}" for note in new_notes]
        return gallery

    def _check_chosen(self, gallery: Sequence[Gallery | None]) -> None:
        queries = {video_id for one in gallery if one is not None for video_id in one.ids[: one.num_queries]}
        missing = [video_id for video_id in self.options.always_shown if queries and video_id not in queries]
        if missing:
            raise ValueError(f"--query {missing[0]!r} is no test video of these plans; one is {min(queries)!r}")

    def _rank(self, stage: StageRun) -> RankedStage:
        assert stage.features is not None
        umap = self.options.umap and has_umap()
        return self._cache.get("ranked", stage.features, lambda: rank_stage(stage, umap=umap))

    def _noisy(self, plans: Sequence[PlanRun], notes: list[str]) -> list[Data]:
        if not self.options.pictures:
            return []
        galleries, new_notes = noisy_galleries(plans, self.out / "pictures")
        notes += new_notes
        return galleries

    def _clips(self, address: str) -> Data:
        if address not in self._datasets:
            opened = self.opened.get(address)
            dataset: Data = {"address": address}
            if opened is None:
                dataset["problem"] = self.opened.reasons[address]
            else:
                samples = sample_records(opened[0].records)
                dataset |= summarize_dataset(opened[0])
                dataset["samples"] = [{"id": one.video_id, "class": one.class_name} for one in samples]
            self._datasets[address] = dataset
        return self._datasets[address]

    def _pictures(self, plans: Sequence[PlanRun], gallery: Sequence[Gallery | None], data: Data) -> ThumbnailSet:
        """Make thumbnails in the space that remains; their style stays the same when the report is written again."""
        if not self.options.pictures:
            return ThumbnailSet("")
        fixed = [path for name in ("assets", "figures") for path in (self.out / name).iterdir()]
        used = sum(path.stat().st_size for path in fixed) + sum(len(data_script(*item)) for item in data.items())
        wanted = choose_thumbnails(plans, gallery, data["report"]["data"])
        budget = max(0.0, self.options.megabytes * 1e6 - used - 45.0 * len(wanted))  # file names in the data
        style = next((one for one in STYLES if one.name == self._style_name), None)
        out = self.out / "pictures"
        made = make_thumbnails(wanted, self.opened, out, budget=budget, workers=self.options.workers, style=style)
        self._style_name = made.folder
        return made

    def _finish(self, version: str, notes: list[str]) -> Data:
        metadata = {
            "software": f"covid-cmsf {__version__}",
            "paths": [str(path.resolve()) for path in self.paths],
            "options": asdict(self.options),
            "version": version,
            "notes": notes,
            "bytes": sum(path.stat().st_size for path in self.out.rglob("*") if path.is_file()),
        }
        write_metadata(self.out, metadata)
        return metadata
