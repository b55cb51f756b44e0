"""Puts a report together: folders in, a page out."""

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from covid_cmsf import __version__
from covid_cmsf.report.clip_facts import clip_facts, sample_records
from covid_cmsf.report.comparison import compare
from covid_cmsf.report.curve_figures import draw_figures
from covid_cmsf.report.curve_lines import lines_of
from covid_cmsf.report.data_files import script, write_data
from covid_cmsf.report.file_cache import FileCache, Stamp
from covid_cmsf.report.noisy_part import noisy_galleries
from covid_cmsf.report.options import Options
from covid_cmsf.report.page import copy_page, prepare_folder, write_mark
from covid_cmsf.report.page_data import curve_values, figures_there, plan_values
from covid_cmsf.report.picture_choice import name_pictures_, picture_notes, wanted_pictures
from covid_cmsf.report.pictures import Opened, Pictures, make_pictures
from covid_cmsf.report.plan_folder import PlanFolder, read_folders
from covid_cmsf.report.projection import has_umap
from covid_cmsf.report.provenance import plan_provenance
from covid_cmsf.report.ranked_stage import RankedStage, rank_stage
from covid_cmsf.report.series import Series, make_series
from covid_cmsf.report.stage_folder import StageFolder
from covid_cmsf.report.thumbnails import STYLES
from covid_cmsf.report.watching import stamps

logger = logging.getLogger(__name__)
Data = dict[str, Any]


class Report:
    """A report that can be written again while training goes on; what has not changed is not computed again."""

    def __init__(self, paths: Sequence[Path], out: Path, options: Options) -> None:
        self.paths, self.out, self.options = list(paths), out, options
        self.opened = Opened(options.clips)
        self.seen: dict[Path, Stamp] = {}  # of the files that it was last made from
        self._memory = FileCache()
        self._facts: dict[str, Data] = {}
        self._style_name = ""

    def write(self, *, live: float = 0.0, figures: bool = True) -> Data:
        """Writes the folder and returns what its mark says.

        `live` is the number of seconds between the page's looks for newer data; 0: it never looks. Without `figures`
        those that are there are left.
        """
        seen = stamps(self.paths)  # before they are read: what changes meanwhile is noticed
        plans = read_folders(self.paths)
        prepare_folder(self.out)
        copy_page(self.out)
        notes = [note for plan in plans for stage in plan.stages for note in stage.notes]
        lines = lines_of(plans)
        drawn = draw_figures(lines, self.out / "figures") if figures else figures_there(self.out / "figures")
        series = [self._series(plan, notes) for plan in plans]
        self._check_chosen(series)
        data: Data = {
            "report": {
                "software": f"covid-cmsf {__version__}",
                "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
                "live": live,
                "umap": has_umap(),
                "plans": plan_values(plans, series),
                "comparison": compare(plans) if len(plans) > 1 else None,
                "curves": curve_values(lines, drawn),
                "noisy": self._noisy(plans, notes),
                "data": [self._clips(address) for address in dict.fromkeys(plan.clips for plan in plans) if address],
            },
            "provenance": [{"name": plan.name, **plan_provenance(plan)} for plan in plans],
        }
        for number, one in enumerate(series):
            if one is not None:
                data[f"series-{number}"] = one.values()
                data[f"neighbors-{number}"] = one.neighbors()
                data[f"map-{number}"] = one.maps()
        pictures = self._pictures(plans, series, data)
        name_pictures_(data, plans, pictures)
        data["report"]["notes"] = [*notes, *picture_notes(pictures, self.opened)]
        self.seen = seen
        return self._finish(write_data(self.out / "data", data), data["report"]["notes"])

    def _series(self, plan: PlanFolder, notes: list[str]) -> Series | None:
        series, own = make_series(
            plan.first.stages,
            self._rank,
            num_shown=self.options.num_queries,
            num_neighbors=self.options.num_neighbors,
            always=self.options.always,
            seed=self.options.seed,
        )
        notes += [f"{plan.name}: {note}" for note in own]
        return series

    def _check_chosen(self, series: Sequence[Series | None]) -> None:
        known = {video_id for one in series if one is not None for video_id in one.ids[: one.num_queries]}
        missing = [video_id for video_id in self.options.always if known and video_id not in known]
        if missing:
            raise ValueError(f"--query {missing[0]!r} is no test video of these plans; one is {min(known)!r}")

    def _rank(self, stage: StageFolder) -> RankedStage:
        assert stage.features is not None
        umap = self.options.umap and has_umap()
        return self._memory.of("ranked", stage.features, lambda: rank_stage(stage, umap=umap))

    def _noisy(self, plans: Sequence[PlanFolder], notes: list[str]) -> list[Data]:
        if not self.options.pictures:
            return []
        galleries, own = noisy_galleries(plans, self.out / "pictures")
        notes += own
        return galleries

    def _clips(self, address: str) -> Data:
        if address not in self._facts:
            opened = self.opened.get(address)
            facts: Data = {"address": address}
            if opened is None:
                facts["problem"] = self.opened.reasons[address]
            else:
                samples = sample_records(opened[0].records)
                facts |= clip_facts(opened[0])
                facts["samples"] = [{"id": one.video_id, "class": one.class_name} for one in samples]
            self._facts[address] = facts
        return self._facts[address]

    def _pictures(self, plans: Sequence[PlanFolder], series: Sequence[Series | None], data: Data) -> Pictures:
        """In the space that everything else leaves; the style stays while a report is written again and again."""
        if not self.options.pictures:
            return Pictures("")
        fixed = [path for name in ("assets", "figures") for path in (self.out / name).iterdir()]
        used = sum(path.stat().st_size for path in fixed) + sum(len(script(*item)) for item in data.items())
        wanted = wanted_pictures(plans, series, data["report"]["data"])
        budget = max(0.0, self.options.megabytes * 1e6 - used - 45.0 * len(wanted))  # their names stand in the data
        style = next((one for one in STYLES if one.name == self._style_name), None)
        out = self.out / "pictures"
        made = make_pictures(wanted, self.opened, out, budget=budget, workers=self.options.workers, style=style)
        self._style_name = made.folder
        return made

    def _finish(self, version: str, notes: list[str]) -> Data:
        mark = {
            "software": f"covid-cmsf {__version__}",
            "of": [str(path.resolve()) for path in self.paths],
            "options": asdict(self.options),
            "version": version,
            "notes": notes,
            "bytes": sum(path.stat().st_size for path in self.out.rglob("*") if path.is_file()),
        }
        write_mark(self.out, mark)
        return mark
