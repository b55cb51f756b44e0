"""The page to explore videos, with made-up vectors of many videos: how soon does it open, and is it smooth?

    python tools/benchmark.py explore FOLDER [--videos 10000] [--json FILE]

Chromium opens the page from disk (`static`), and then from the server (`served`), both with pictures of every video.
`ready`: bar, tabs and search box are there; `map`: all points are drawn. Panning moves the map once per frame; typing
enters a name letter by letter; `results`: from Enter to the cards of the nearest videos, `pictures`: to all of their
loops that are in view; a lasso selects everything. The longest task is the longest time in which the page answers
nothing. Without a display frames come every 16.7 ms at best.

The videos are made-up: a few clips of moving noise under many names.
"""

import os
import shutil
import statistics
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
import typer

from covid_cmsf.clips.records import (
    ClipRecord,
    FlowInfo,
    StoreInfo,
    clip_path,
    info_to_json,
    write_manifest,
    write_split,
)
from covid_cmsf.pages.server import server_url
from covid_cmsf.search.index import IndexedVideo, SearchIndex, WindowSet, save_index
from covid_cmsf.search.page.explorer import Explorer
from covid_cmsf.search.page.serve import serve_page
from covid_cmsf.search.page.write import write_page
from tools.benchmarks.duplicates import write_video
from tools.benchmarks.measure import JsonFile, print_results

FRAMES, GROUPS = 250, 40
WIDTH, HEIGHT, CLIPS = 80, 60, 24  # distinct clips
IN_VIEW = """() => { const all = [...document.querySelectorAll("#panel .results img")].filter((one) => {
  const box = one.getBoundingClientRect(); return box.top < innerHeight && box.bottom > 0; });
  return all.length && all.every((one) => one.complete && one.naturalWidth) ? performance.now() : 0; }"""
PAN = """async () => { const view = Page.map.view, times = []; view.zoom(3);
  await new Promise((done) => { let last = null, count = 0; const step = (now) => {
    if (last !== null) times.push(now - last); last = now; view.pan(count % 40 < 20 ? 9 : -9, 4 - (count % 9));
    if (++count < 120) requestAnimationFrame(step); else done(); }; requestAnimationFrame(step); });
  const paints = Array.from({ length: 30 }, () => {
    const start = performance.now(); view.paint(); return performance.now() - start; });
  return [times, paints]; }"""
LASSO = """() => { const start = performance.now(); const found = Page.map.view.inside(
  Array.from({ length: 200 }, (_, i) => [400 + 5000 * Math.cos(i / 31.8), 400 + 5000 * Math.sin(i / 31.8)]));
  Page.store.select(found); return [performance.now() - start, found.length]; }"""
TASKS = """window.longest = 0;
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration);
}).observe({ type: "longtask", buffered: true });"""
NEXT_FRAME = "new Promise((done) => requestAnimationFrame(() => done(performance.now())))"
WORST = ("ready_ms", "map_ms", "pan_frame_ms", "typing_longest_ms", "results_ms")


def command(
    folder: Path = typer.Argument(..., help="Where the index and the page are written."),
    videos: int = typer.Option(10_000, min=100),
    values: int = typer.Option(16, min=8, help="Size of a vector; the browser does not see it."),
    windows: int = typer.Option(1, min=1, help="Windows per video; the browser does not see them either."),
    repeats: int = typer.Option(5, min=1, help="How often the page is opened."),
    json_file: JsonFile = None,
) -> None:
    """Open the page of a made-up index from disk and from the server, pan its map, type, search and lasso."""
    results: dict[str, Any] = {"videos": videos, "windows": videos * windows, "values": values, "repeats": repeats}
    results["load_before"] = os.getloadavg()[0]
    index = make_index(videos, values, windows)
    save_index(folder / "index", index)
    make_store(folder / "clips", index)
    start, cpu = time.perf_counter(), time.process_time()
    written = write_page(
        folder / "index", folder / "clips", folder / "page", duplicates=False, num_clusters=GROUPS, umap=False
    )
    results |= {"write_s": time.perf_counter() - start, "write_cpu_s": time.process_time() - cpu}
    results["data_bytes_per_video"] = (written.num_bytes - written.picture_bytes) / videos
    results["picture_bytes_per_video"] = written.picture_bytes / videos
    static = measure_page((folder / "page" / "index.html").as_uri(), repeats)
    results |= {f"static_{key}": value for key, value in static.items()}
    server = serve_page(Explorer(folder / "index", folder / "clips"), 0)
    served = measure_page(server_url(server), repeats)
    server.shutdown()
    results |= {f"served_{key}": value for key, value in served.items()}
    print_results({**results, "load_after": os.getloadavg()[0]}, json_file=json_file)


def make_store(store: Path, index: SearchIndex) -> None:
    """Write an RGB clip store of the videos of an index: a few clips of moving noise, under all names."""
    rng = np.random.default_rng(0)
    store.mkdir(parents=True, exist_ok=True)
    for number in range(CLIPS):
        noise = cv2.resize(rng.integers(0, 255, (12, 24, 3), dtype=np.uint8), (3 * WIDTH, HEIGHT))
        frames = np.stack([noise[:, frame % (2 * WIDTH) :][:, :WIDTH] for frame in range(FRAMES)])
        write_video(store / f"{number}.mp4", frames, fps=25)
    for number, video in enumerate(index.videos):
        path = clip_path(store, "rgb", video.video_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.hardlink_to(store / f"{number % CLIPS}.mp4")
    flow = FlowInfo(backend="numba", version="", parameters={}, bound=20.0)
    info = StoreInfo(modalities=("rgb",), short_edge=HEIGHT, max_frames=0, quality=18, flow=flow)
    (store / "store.json").write_text(info_to_json(info), encoding="utf-8")
    names = [video.video_id for video in index.videos]
    rows = [ClipRecord(name, name, "", -1, FRAMES, FRAMES - 1, 25.0, WIDTH, HEIGHT, "") for name in names]
    write_manifest(store / "manifest.csv", rows)
    (store / "splits").mkdir(exist_ok=True)
    write_split(store / "splits" / "1.csv", dict.fromkeys(names, "test"))


def make_index(num_videos: int, size: int, num_windows: int) -> SearchIndex:
    """Videos around the centers of groups, by two modalities, `num_windows` windows each."""
    generator = torch.Generator().manual_seed(0)
    names = [f"folder{i % 97:02d}/video-{i:06d}" for i in range(num_videos)]
    rows = tuple(IndexedVideo(name, name, "", FRAMES, 25.0) for name in names)
    numbers = torch.arange(num_videos).repeat_interleave(num_windows)
    sets = {}
    for name in ("flow", "rgb"):
        centers = torch.randn(GROUPS, size, generator=generator)
        group = torch.randint(0, GROUPS, (num_videos,), generator=generator)
        own = centers[group] + 0.9 * torch.randn(num_videos, size, generator=generator)
        vectors = own[numbers] + 0.5 * torch.randn(len(numbers), size, generator=generator)
        starts = torch.arange(num_windows).repeat(num_videos) * 60
        sets[name] = WindowSet(F.normalize(vectors, dim=1), torch.zeros(size), numbers, starts, 32, {})
    return SearchIndex(rows, sets)


def measure_page(address: str, repeats: int) -> dict[str, Any]:
    """Return medians over `repeats` openings; of the longest tasks and of frames also the worst."""
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    runs = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        for _ in range(repeats):
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.add_init_script(TASKS)
            page.goto(address, wait_until="commit")  # the server still computes clusters while the map is there
            page.wait_for_selector("canvas[data-drawn]", timeout=120_000)
            runs.append(_measure_one(page))
            page.close()
        browser.close()
    medians = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return {**medians, **{f"{key}_worst": max(run[key] for run in runs) for key in WORST}}


def _measure_one(page: Any) -> dict[str, float]:
    marks = page.evaluate("performance.getEntriesByType('mark').map((one) => [one.name, one.startTime])")
    paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0")
    found = {"first_paint_ms": paint, "ready_ms": dict(marks)["page-ready"], "map_ms": dict(marks)["map-drawn"]}
    found["opening_longest_ms"] = page.evaluate("window.longest")
    page.evaluate("window.longest = 0")
    frames, paints = page.evaluate(PAN)
    found |= {"pan_frame_ms": statistics.median(frames), "pan_frame_95_ms": sorted(frames)[int(0.95 * len(frames))]}
    found |= {"map_paint_ms": statistics.median(paints), "pan_longest_ms": page.evaluate("window.longest")}
    page.evaluate("window.longest = 0")
    page.locator("#name").focus()
    times = []
    for letter in "video-0004":
        start = page.evaluate("performance.now()")
        page.keyboard.press(letter)
        times.append(page.evaluate(NEXT_FRAME) - start)
    found |= {"key_to_frame_ms": statistics.median(times), "typing_longest_ms": page.evaluate("window.longest")}
    start = page.evaluate("performance.now()")
    page.keyboard.press("Enter")
    shown = "() => document.querySelector('#panel .results .clip-card') && performance.now()"
    found["results_ms"] = page.wait_for_function(shown).json_value() - start
    found["pictures_ms"] = page.wait_for_function(IN_VIEW).json_value() - start
    found["lasso_ms"], found["lassoed"] = page.evaluate(LASSO)
    return found
