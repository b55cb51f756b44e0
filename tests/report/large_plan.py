"""How large is the page of a large plan, and how soon does it open? Not a test: it prints.

python -m tests.report.large_plan FOLDER --classes 10 --sources 150 --queries 1000

Of every class a third of the sources, two videos each, are for testing: 10 and 150 make 1000 queries in 2000 videos.
"""

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from covid_cmsf.evaluation.probes.linear import evaluate_linear
from covid_cmsf.report.build import Report, ReportOptions
from tests.page_fixtures import find_chromium
from tests.report import plan_factories

READY = "performance.getEntriesByType('mark').find((one) => one.name === 'report-ready')?.startTime"


def main() -> None:
    """Makes the plan if it is not there, writes its report, and opens it a few times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, value in (("classes", 10), ("sources", 150), ("values", 128), ("queries", 1000), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    chosen = parser.parse_args()
    clips, plan = chosen.folder / "clips", chosen.folder / "plan"
    if not clips.exists():
        plan_factories.make_clips(clips, num_classes=chosen.classes, num_sources=chosen.sources)
    if not plan.exists():
        small = evaluate_linear(plan_factories.features_of(1.0, 0))  # a probe of so many videos would take its time
        sizes = {"num_classes": chosen.classes, "num_sources": chosen.sources, "size": chosen.values}
        with patch.object(plan_factories, "evaluate_linear", lambda features: replace(small)):
            plan_factories.make_plan(plan, clips, sizes=sizes, rounds=chosen.rounds)
    out = chosen.folder / f"report-{chosen.queries}"
    start = time.monotonic()
    metadata = Report([plan], out, ReportOptions(num_queries=chosen.queries)).write()
    print(f"{metadata['bytes'] / 1e6:.1f} MB in {time.monotonic() - start:.0f} s; {metadata['notes'] or 'no notes'}")
    for name in ("assets", "data", "figures", "pictures"):
        files = [path for path in (out / name).rglob("*") if path.is_file()]
        print(f"  {name}: {len(files)} files, {sum(path.stat().st_size for path in files) / 1e6:.2f} MB")
    print_times(out)


def print_times(out: Path, repeats: int = 5) -> None:
    """Seconds from the start of navigation: tables and controls stand, and the first chart is drawn."""
    from playwright.sync_api import sync_playwright

    ready: list[float] = []
    drawn: list[float] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for _ in range(repeats):
            page: Any = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto((out / "index.html").as_uri())
            page.wait_for_selector("html[data-ready]")
            page.evaluate("document.querySelector('.chart').scrollIntoView()")
            page.wait_for_selector(".chart[data-drawn]")
            drawn.append(page.evaluate("performance.now()") / 1000)
            ready.append(page.evaluate(READY) / 1000)
            page.close()
        browser.close()
    for event, times in (("page ready", ready), ("first chart drawn", drawn)):
        print(f"  {event}: median {statistics.median(times):.2f} s, worst {max(times):.2f} s of {repeats}")


if __name__ == "__main__":
    main()
