"""The page in a browser: by mouse and by keyboard, from disk and from the server, in both themes and narrow."""

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.clips.records import clip_path
from covid_cmsf.pages.server import server_url
from covid_cmsf.search.index import load_index
from covid_cmsf.search.page.copies import COPIES_FILE, read_copies
from covid_cmsf.search.page.data import duplicate_values, probe_values
from covid_cmsf.search.page.explorer import Explorer
from covid_cmsf.search.page.serve import serve_page
from covid_cmsf.search.query import search, video_vectors
from tests.page_fixtures import WatchedPage
from tests.search.page.test_probe import PROBE_SCRIPT, slow_calibration, slow_suggestions

pytestmark = pytest.mark.slow  # each test opens pages in Chromium

QUERY_IS_SHOWN = "() => [...document.querySelectorAll('.query img.loop')].every((one) => one.naturalWidth)"


def ids(opened: WatchedPage, selector: str = "#panel .results .clip-card") -> list[str]:
    """The videos of the cards that are shown."""
    script = f"[...document.querySelectorAll('{selector}')].map((one) => Page.data.videos.ids[one.dataset.video])"
    return list(opened.value(script))


def wait_for_results(opened: WatchedPage, query: int | str, choice: str) -> None:
    opened.page.wait_for_selector(f'#panel[data-shown="{query} {choice}"]')


def saved_csv(opened: WatchedPage, press: Any) -> list[dict[str, str]]:
    with opened.page.expect_download() as download:
        press()
    return list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text(encoding="utf-8"))))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_from_disk_finds_by_name_what_search_finds(
    static_page: Path, page_index: Path, open_page: Any, scheme: str
) -> None:
    opened, index = open_page(static_page, color_scheme=scheme), load_index(page_index)
    page = opened.page
    page.wait_for_selector("canvas[data-drawn]")
    page.keyboard.press("/")
    page.keyboard.type("v00007")
    assert page.locator("#names [data-video]").count() == 1
    page.keyboard.press("Enter")
    query = index.find("v00007")
    for choice in ("fused", "flow", "rgb"):
        wait_for_results(opened, query, choice)
        matches = search(index, video_vectors(index, query), modality=choice, exclude=frozenset({query}))
        assert ids(opened) == [index.videos[match.video].video_id for match in matches]
        first = page.locator("#panel .results .clip-card").first
        shown = [float(text) for text in first.locator(".score, .by .value").all_text_contents()]
        expected = [matches[0].score, *(matches[0].by_modality[name] for name in index.windows)]
        assert shown == pytest.approx(expected, abs=0.006)
        page.keyboard.press("m")
    opened.page.wait_for_function(
        "() => [...document.querySelectorAll('.query img.loop')].every((one) => one.naturalWidth)"
    )
    ground = opened.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 300) == (scheme == "dark")
    page.go_back()
    wait_for_results(opened, query, "rgb")


def test_a_dropped_file_finds_its_own_video_first(served: Any, clips: Path, page_index: Path, open_page: Any) -> None:
    opened, index = open_page(server_url(served[1])), load_index(page_index)
    name = index.videos[9].video_id
    data = list(clip_path(clips, "rgb", name).read_bytes())
    script = """data => { const files = new DataTransfer();
      files.items.add(new File([new Uint8Array(data)], "mine.mp4")); return files; }"""
    opened.page.dispatch_event("body", "drop", {"dataTransfer": opened.page.evaluate_handle(script, data)})
    opened.page.wait_for_selector("#panel .results .clip-card")
    assert opened.page.locator(".query h2").inner_text() == "mine.mp4" and len(ids(opened)) == 20
    opened.page.locator("#choices [data-choice=rgb]").click()
    opened.page.wait_for_function(
        "() => Page.store.state.choice === 'rgb' && document.querySelector('#panel').dataset.shown?.endsWith('rgb')"
    )
    assert ids(opened)[0] == name
    opened.page.wait_for_function(
        "() => [...document.querySelectorAll('.query img.loop')].every((one) => one.naturalWidth)"
    )
    opened.page.locator("input[type=file]").set_input_files(
        {"name": "list.m3u8", "mimeType": "video/mp4", "buffer": b"#EXTM3U\nhttp://127.0.0.1:1/a.ts\n"}
    )
    opened.page.wait_for_selector("#status.problem")
    assert "no video file" in opened.page.locator("#status").inner_text()
    opened.faults = [fault for fault in opened.faults if "400 (Bad Request)" not in fault]


def test_a_query_is_searched_once_and_an_answer_for_a_replaced_list_is_not_shown(served: Any, open_page: Any) -> None:
    opened = open_page(server_url(served[1]))
    opened.page.evaluate(
        """() => {
            const search = Page.api.search;
            window.held = [];
            Page.api.search = (...asked) => new Promise((done) => window.held.push(() => {
                const found = search(...asked);
                done(found);
                return found;
            }));
        }"""
    )
    opened.page.evaluate("Page.store.ask({ video: 7 })")
    assert opened.value("held.length") == 1
    opened.page.evaluate("Page.store.choose('rgb')")
    opened.page.evaluate("Page.redraw('neighbors')")
    assert opened.value("held.length") == 3
    shown = opened.page.evaluate(
        """async () => {
            const shown = [];
            for (const answer of held) {
                await answer();
                await new Promise((done) => setTimeout(done, 0)); // whoever waits for the answer goes first
                const panel = document.querySelector("#panel");
                shown.push([panel.dataset.shown || "", panel.querySelectorAll(".results .clip-card").length > 0]);
            }
            return shown;
        }"""
    )
    assert shown == [["", False], ["", False], ["7 rgb", True]]


def test_a_part_of_a_video_is_a_query_by_mouse_and_by_keyboard(served: Any, page_index: Path, open_page: Any) -> None:
    opened, index = open_page(server_url(served[1])), load_index(page_index)
    page, query, frames = opened.page, 7, index.videos[7].num_frames
    page.evaluate("Page.store.ask({ video: 7 })")
    wait_for_results(opened, query, "fused")
    whole = ids(opened)

    def expect(start: int, end: int) -> list[str]:
        wait_for_results(opened, query, f"fused {start}-{end}")
        vectors = video_vectors(index, query, start=start, end=end)
        assert all(len(one) == 1 for one in vectors.values()), "of two windows the part has one"
        found = [index.videos[one.video].video_id for one in search(index, vectors, exclude=frozenset({query}))]
        assert ids(opened) == found
        return found

    box = page.locator("#part-end").bounding_box()
    right, middle = box["x"] + box["width"] - 8, box["y"] + box["height"] / 2
    page.mouse.move(right, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.4 * box["width"], middle, steps=4)
    page.mouse.up()
    end = opened.value("Page.store.state.query.part[1]")
    assert 0 < end < frames // 2 and expect(0, end) != whole
    assert "by the window" in page.locator("#compared").inner_text()
    page.wait_for_function(QUERY_IS_SHOWN)
    page.reload()  # the part is in the address
    expect(0, end)
    page.keyboard.press("s")
    page.keyboard.press("Tab")
    page.keyboard.press("End")
    wait_for_results(opened, query, "fused")
    assert ids(opened) == whole and page.locator("#part-reset").is_hidden()
    page.keyboard.press("s")
    for _ in range(frames):
        page.keyboard.press("ArrowRight")
        start = opened.value("Page.store.state.query.part[0]")
        if start > int(index.windows["rgb"].starts[index.windows["rgb"].of_video(query)][0]):
            break
    expect(start, frames)
    page.get_by_role("button", name="Whole video").click()
    wait_for_results(opened, query, "fused")
    assert ids(opened) == whole


def test_copies_are_looked_for_in_the_background(page_index: Path, tmp_path: Path, open_page: Any) -> None:
    folder = shutil.copytree(page_index.parent, tmp_path / "project")
    (folder / "index" / COPIES_FILE).unlink()
    explorer = Explorer(folder / "index")
    assert explorer.clips is not None
    names = [video.video_id for video in explorer.index.videos]
    for kind in ("rgb", "flow"):  # video 3 becomes a copy of video 30
        shutil.copy(clip_path(folder / "clips", kind, names[30]), clip_path(folder / "clips", kind, names[3]))
    server = serve_page(explorer, 0)
    opened = open_page(server_url(server))
    opened.page.keyboard.press("4")
    opened.page.get_by_role("button", name="Look for copies").click()
    opened.page.wait_for_selector("#panel[data-shown=copies]", timeout=60_000)
    shown = opened.value("[...document.querySelectorAll('.pair')].map((one) => one.getAttribute('aria-label'))")
    server.shutdown()
    server.server_close()
    assert f"{names[3]} and {names[30]}" in shown
    kept = read_copies(folder / "index")
    assert kept is not None and explorer.copies.status()["pairs"] == duplicate_values(kept)
    assert Explorer(folder / "index").copies.status()["state"] == "done"


def test_the_map_is_zoomed_and_lassoed_and_the_selection_saved(static_page: Path, open_page: Any) -> None:
    opened = open_page(static_page)
    page = opened.page
    page.wait_for_selector("canvas[data-drawn]")
    box = page.locator("#canvas").bounding_box()
    center = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    scale = opened.value("Page.map.view.view.scale")
    page.mouse.move(*center)
    page.mouse.wheel(0, -300)
    page.wait_for_function(f"() => Page.map.view.view.scale > 1.3 * {scale}")
    page.get_by_role("button", name="Fit").click()
    assert opened.value("Page.map.view.view.scale") == pytest.approx(scale)
    left, top, right, bottom = box["x"] + 2, box["y"] + 2, center[0], box["y"] + box["height"] - 2
    page.keyboard.down("Shift")
    page.mouse.move(left, top)
    page.mouse.down()
    for corner in ((right, top), (right, bottom), (left, bottom)):
        page.mouse.move(*corner, steps=3)
    page.mouse.up()
    page.keyboard.up("Shift")
    half = box["width"] / 2
    inside = opened.value(f"Page.map.view.there.filter((video) => Page.map.view.place(video)[0] < {half}).length")
    names = ids(opened, "#panel .clip-card")
    assert 0 < inside < 48 and len(names) == inside
    rows = saved_csv(opened, page.get_by_role("button", name="Save as CSV").click)
    assert [row["video"] for row in rows] == names and {"label", "cluster", "class", "seconds"} <= set(rows[0])
    page.keyboard.press("Escape")
    assert opened.value("Page.store.state.selection.size") == 0


def test_labels_are_saved_and_the_probe_suggests_the_rest(served: Any, page_index: Path, open_page: Any) -> None:
    explorer, server = served
    opened = open_page(server_url(server))
    page = opened.page
    for label, chosen in (("=one", [0, 1, 2]), ("two, three", [20, 21])):
        opened.page.evaluate("chosen => Page.store.select(chosen)", chosen)
        page.keyboard.press("l")
        page.keyboard.type(label)
        page.keyboard.press("Enter")
        page.wait_for_function("() => Page.store.state.selection.size === 0")
    page.wait_for_function("() => document.getElementById('status').textContent.includes('labels.csv')")
    names = [video.video_id for video in explorer.index.videos]
    expected = {names[0]: "=one", names[1]: "=one", names[2]: "=one", names[20]: "two, three", names[21]: "two, three"}
    rows = list(csv.DictReader((page_index / "labels.csv").open(encoding="utf-8", newline="")))
    assert {row["video"].removeprefix("'"): row["label"].removeprefix("'") for row in rows} == expected
    page.keyboard.press("5")
    page.wait_for_selector('#panel[data-shown="labels 5"] .group[data-label="=one"] .clip-card')
    assert page.locator("#checked").inner_text().startswith("Few labels")
    assert page.get_by_role("button", name="Accept").count() == 0
    slow = slow_suggestions(probe_values(explorer.index), [0, 0, 0, 1, 1], [0, 1, 2, 20, 21])
    best = max((row for row in slow if row[1] == 0), key=lambda row: row[2])
    assert ids(opened, '.group[data-label="=one"] .clip-card')[0] == names[best[0]]
    page.locator('.group[data-label="=one"] .accept').first.click()
    page.wait_for_selector('#panel[data-shown="labels 6"]')
    again = open_page(server_url(server))
    again.page.wait_for_function("() => Page.store.state.labels.size === 6")
    explorer.save_labels(dict.fromkeys(names, ""))


def test_copies_are_confirmed_and_dismissed(served: Any, page_index: Path, open_page: Any) -> None:
    explorer, server = served
    opened = open_page(server_url(server))
    page = opened.page
    page.keyboard.press("4")
    page.wait_for_selector("#panel[data-shown=copies] .pair")
    assert page.locator(".pair").count() == 2
    page.locator(".pair").first.focus()
    page.keyboard.press("y")
    page.wait_for_selector(".pair[data-decision=copy]")
    page.get_by_role("button", name="Different").nth(1).click()
    page.wait_for_selector(".pair[data-decision=different]")
    names = [video.video_id for video in explorer.index.videos]
    page.wait_for_function("() => document.querySelector('#status').textContent.includes('copies.csv')")
    assert explorer.decisions == {(names[0], names[1]): "copy", (names[2], names[5]): "different"}
    rows = saved_csv(opened, page.get_by_role("button", name="Save decisions").click)
    assert len((page_index / "copies.csv").read_text().splitlines()) == 3 and len(rows) <= 2
    page.get_by_label("also those").check()
    assert page.locator(".pair").count() == 1  # the decided ones are not open any more
    for pair in list(explorer.decisions):
        explorer.save_decision(*pair, "")


def test_everything_can_be_done_with_the_keyboard(static_page: Path, open_page: Any) -> None:
    opened = open_page(static_page)
    page = opened.page
    page.wait_for_selector("canvas[data-drawn]")
    stops = []
    for _ in range(4):
        page.keyboard.press("Tab")
        stops.append(opened.value("document.activeElement.id || document.activeElement.className"))
    assert stops == ["skip", "name", "", "help"]  # "": the chosen modality
    page.keyboard.press("?")
    assert "select all that is in view" in page.locator("#shortcuts").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("3")
    page.wait_for_selector("#panel .group")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("x")
    page.keyboard.press("Enter")
    page.wait_for_selector("#panel .results .clip-card")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("x")
    assert opened.value("Page.store.state.selection.size") == 2
    assert len(saved_csv(opened, lambda: page.keyboard.press("e"))) == 2
    page.keyboard.press("g")
    assert opened.value("document.activeElement.id") == "canvas"
    for key in ("+", "+", "ArrowLeft", "a"):
        page.keyboard.press(key)
    seen = opened.value("Page.map.view.visible().length")
    assert opened.value("Page.store.state.selection.size") == seen < 48
    page.keyboard.press("t")
    assert opened.value("Page.theme.current()") == "dark"


def test_names_are_text_and_a_narrow_window_does_not_scroll_sideways(static_page: Path, open_page: Any) -> None:
    opened = open_page(static_page, viewport={"width": 400, "height": 860}, reduced_motion="reduce")
    opened.page.evaluate("Page.store.ask({ video: 0 })")
    for panel in ("neighbors", "clusters", "copies", "labels"):
        opened.page.evaluate("panel => Page.store.show(panel)", panel)
        opened.drawn()
        assert opened.value("document.documentElement.scrollWidth") == 400
    assert opened.value("document.querySelectorAll('main script, main b b').length") == 0
    opened.page.evaluate("Page.store.show('neighbors')")
    opened.page.wait_for_selector("#panel canvas.still")


def test_the_probe_equals_its_slow_twin(static_page: Path, page_index: Path, open_page: Any) -> None:
    opened = open_page(static_page)
    generator = torch.Generator().manual_seed(0)
    videos = torch.randperm(48, generator=generator)[:9].tolist()
    classes = [0, 0, 0, 0, 1, 1, 2, 2, 2]
    fast = opened.page.evaluate(PROBE_SCRIPT, [videos, classes])
    slow = slow_suggestions(probe_values(load_index(page_index)), classes, videos)
    assert [row["video"] for row in fast] == [row[0] for row in slow] and len(fast) == 39
    assert [int(row["label"]) for row in fast] == [row[1] for row in slow]
    assert [row["value"] for row in fast] == pytest.approx([row[2] for row in slow], abs=2e-3)


def test_labels_that_are_left_out_say_how_far_the_probe_is_right(
    static_page: Path, page_index: Path, open_page: Any
) -> None:
    opened, values = open_page(static_page), probe_values(load_index(page_index))
    videos = torch.randperm(48, generator=torch.Generator().manual_seed(1))[:14].tolist()
    classes = [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]  # they mean nothing, so nothing is certain
    suggest = PROBE_SCRIPT.replace(").rows", ")")
    fast = opened.page.evaluate(suggest, [videos, classes])
    temperature, right = slow_calibration(values, classes, videos)
    assert (fast["temperature"], fast["right"], fast["checked"]) == (pytest.approx(temperature), right, 14)
    slow = slow_suggestions(values, classes, videos)
    mean = sum(row["value"] for row in fast["rows"]) / len(slow)
    assert temperature > 1 and mean < 0.5 < sum(row[2] for row in slow) / len(slow)
    assert opened.page.evaluate(suggest, [videos[:9], classes[:9]])["few"]
    script = "([videos, names]) => videos.forEach((one, i) => Page.store.state.labels.set(one, names[i]))"
    opened.page.evaluate(script, [videos, [f"kind {one}" for one in classes]])
    opened.page.keyboard.press("5")
    opened.page.wait_for_selector('#panel[data-shown="labels 14"]')
    assert f"{right} of 14 rightly" in opened.page.locator("#checked").inner_text()
