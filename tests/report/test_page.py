"""The page in a browser: whole, quiet, without network, in both themes and on a phone; filters filter."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.evaluation.features.file import load_features, save_features
from covid_cmsf.pages.server import serve_folder, server_url
from covid_cmsf.report.build import Report, ReportOptions
from covid_cmsf.report.curves import smooth
from covid_cmsf.report.line_styles import MODALITY_COLORS
from tests.page_fixtures import WatchedPage
from tests.report.plan_factories import ODD, make_plan

pytestmark = pytest.mark.slow  # each test opens pages in Chromium
SECTIONS = ("overview", "comparison", "curves", "neighbors", "map", "errors", "data", "provenance")


@pytest.fixture(scope="module")
def written(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the finished plan."""
    out = tmp_path_factory.mktemp("page") / "report"
    Report([plan], out, ReportOptions(num_queries=16, num_neighbors=4)).write(figures=False)
    return out


def see_all(opened: WatchedPage) -> None:
    """Scrolls through the page until every chart is drawn."""
    opened.page.wait_for_selector("#provenance h3")
    for section in SECTIONS:
        opened.page.evaluate("id => document.getElementById(id).scrollIntoView()", section)
        for chart in opened.page.locator(f"#{section} .chart").all():
            chart.scroll_into_view_if_needed()
        opened.page.wait_for_function(
            "id => [...document.querySelectorAll(`#${id} .chart`)].every((one) => one.dataset.drawn)", arg=section
        )


def choose(opened: WatchedPage, section: str, label: str, option: str) -> None:
    """Picks an option by its value."""
    opened.page.locator(f"#{section} label.choice", has_text=label).first.locator("select").select_option(option)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_section_is_drawn_without_a_word_of_complaint(written: Path, open_page: Any, scheme: str) -> None:
    opened = open_page(written, color_scheme=scheme)
    see_all(opened)
    for section in SECTIONS:
        assert len(opened.page.locator(f"#{section} .body > *").all()) > 0, section
    charts = opened.value("[...document.querySelectorAll('.chart')].map((one) => one.dataset.chart)")
    assert {
        "results-0",
        "curve-loss-infonce",
        "curve-loss-mean-shift",
        "curve-purity",
        "map-before",
        "map-after",
        "confusion",
        "classes",
    } <= set(charts)
    pictures = opened.value("[...document.images].filter((one) => one.complete && !one.naturalWidth).length")
    assert pictures == 0 and opened.value("document.images.length") > 20
    ground = opened.value("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(","))) < 300) == (scheme == "dark")


def test_gains_are_shown_with_their_intervals_and_verdict(written: Path, plan: Path, open_page: Any) -> None:
    opened = open_page(written)
    opened.page.wait_for_selector("#overview .gains")
    rows = json.loads((plan / "gains.json").read_text())
    cells = [row.locator("td").all_text_contents() for row in opened.page.locator("#overview .gains tbody tr").all()]
    assert [(one[0], one[1], one[-1]) for one in cells] == [
        (row["stage"], f"{row['over']} (start)" if row["is_start"] else row["over"], row["verdict"]) for row in rows
    ]
    gain = rows[0]["r1"]
    assert cells[0][2].replace("−", "-") == f"{gain['difference']:+.1f} [{gain['low']:+.1f}, {gain['high']:+.1f}]"
    assert "95% intervals resample sources" in opened.page.locator("#overview .gains").inner_text()


def test_the_headline_words_and_chance_explain_themselves(written: Path, open_page: Any) -> None:
    opened = open_page(written, viewport={"width": 400, "height": 800})
    page = opened.page
    page.wait_for_selector("#overview .results")
    headline = page.locator("#overview .headline").inner_text()
    assert "(95% interval " in headline and "control, msf-rgb" in headline and "chance 25.0" in headline
    tip = page.locator("#term-tip")
    assert tip.is_hidden()
    page.locator("#overview .gains .term", has_text="Over").first.hover()
    assert "compared with" in tip.inner_text()
    page.keyboard.press("Escape")
    assert tip.is_hidden()
    page.locator("#curves .term", has_text="Guide agreement").focus()
    assert "guide already find" in tip.inner_text()
    box = tip.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 400
    described = "document.querySelectorAll('.term:not([aria-description])').length"
    assert opened.value("document.querySelectorAll('#overview .term').length") > 8 and opened.value(described) == 0
    assert page.locator("#overview .results tr[data-stage=chance]").count() == 1
    assert "a random ranking 25.0" in page.locator("#errors").inner_text()


def test_every_chart_and_every_head_of_a_table_has_a_term(
    plan: Path, clips: Path, tmp_path: Path, open_page: Any
) -> None:
    other = make_plan(tmp_path / "other", clips, done=["infonce-rgb", "infonce-flow"], controls=[])
    Report([plan, other], tmp_path / "report", ReportOptions(num_queries=4, pictures=False)).write(figures=False)
    opened = open_page(tmp_path / "report")
    see_all(opened)
    heads = """[...document.querySelectorAll('main th, main article.card:has(.chart) h3')]
      .map((head) => [head.textContent, Boolean(head.querySelector('.term'))])"""
    found = [(text, explained) for text, explained in opened.value(heads)]
    assert (
        len(found) > 30 and {"Loss of InfoNCE", "Guide agreement", "SHA-256", "Reason", "Split"} <= dict(found).keys()
    )
    assert [text for text, explained in found if not explained] == []
    cells = opened.page.locator("#comparison tbody tr").first.locator("td").all_text_contents()
    assert cells[0] == "chance" and cells[3:] == ["25.0", "25.0", "25.0", "25.0"]
    assert opened.value("Page.term('constructor')") == "constructor", "a name is no term by accident"


def test_the_colors_of_the_chart_are_named_for_the_modalities_that_there_are(written: Path, open_page: Any) -> None:
    page = open_page(written).page
    note = page.locator("#overview .color-note")
    assert note.locator(".color-name").all_text_contents() == ["rgb", "flow"] and "rounds" in note.inner_text()
    styles = [one.get_attribute("style") for one in note.locator(".swatch").all()]
    assert styles == [f"--own:{MODALITY_COLORS[name]}" for name in ("rgb", "flow")]
    chance = page.locator("#overview .results tr[data-stage=chance] td")
    assert {head: chance.and_(page.locator(f"[data-head='{head}']")).inner_text() for head in ("R@1", "Linear")} == {
        "R@1": "25.0",
        "Linear": "25.0",
    }


def test_names_are_shown_as_they_are_and_nothing_in_them_runs(written: Path, open_page: Any) -> None:
    opened = open_page(written)
    see_all(opened)
    names = opened.value("[...document.querySelectorAll('#neighbors .class-name')].map((one) => one.textContent)")
    assert set(names) <= set(ODD) and len(set(names)) > 1
    assert opened.value("document.querySelectorAll('main b b, main script').length") == 0
    ticks = opened.page.locator("#errors .chart[data-chart=confusion] .ytick").all_text_contents()
    assert any("<b>" in tick for tick in ticks)


def test_errors_are_those_of_the_nearest_neighbor_or_of_the_linear_classifier(
    written: Path, plan: Path, open_page: Any
) -> None:
    opened = open_page(written)
    see_all(opened)
    section = opened.page.locator("#errors")
    assert "Confusion of the nearest neighbor" in section.inner_text()
    before = opened.value("document.querySelector('#errors [data-chart=confusion]').data[0].z")
    choose(opened, "errors", "Errors of", "linear")
    section.locator("h3", has_text="Confusion of the linear classifier").wait_for()
    section.locator("h3", has_text="Linear accuracy per class").wait_for()
    see_all(opened)
    after = opened.value("document.querySelector('#errors [data-chart=confusion]').data[0].z")
    stage = section.locator(".card p.quiet").first.inner_text().partition("● ")[2].partition(";")[0]
    counts = json.loads((plan / stage / "linear.json").read_text())["scores"]["confusion"]
    assert after == [[100 * one / sum(row) for one in row] for row in counts] and after != before


def test_a_video_that_a_stage_could_not_read_is_neither_right_nor_wrong(written: Path, open_page: Any) -> None:
    opened = open_page(written)
    stages = "{ first_correct: [null, 1, 3] }, { first_correct: [1, null, 1] }"
    found = opened.value(f"[0, 1, 2].map((query) => Page.metrics.outcome({stages}, query))")
    assert found == ["unmeasured", "unmeasured", "improved"]


def test_filters_of_the_gallery_leave_the_right_queries(written: Path, open_page: Any) -> None:
    opened = open_page(written)
    page = opened.page
    page.wait_for_selector("#neighbors .query")
    count = page.locator("#neighbors .count")
    assert count.inner_text() == "16 queries"
    choose(opened, "neighbors", "Class", "1")
    classes = opened.value("[...document.querySelectorAll('#neighbors .query')].map((one) => one.dataset.class)")
    assert classes and set(classes) == {"1"} and count.inner_text() != "16 queries"
    choose(opened, "neighbors", "Class", "")
    seen = 0
    for outcome in ("improved", "hurt", "right", "wrong"):
        choose(opened, "neighbors", "Outcome", outcome)
        kinds = opened.value("[...document.querySelectorAll('#neighbors .query')].map((one) => one.dataset.outcome)")
        assert set(kinds) <= {outcome}
        seen += int(count.inner_text().split()[0])
    assert seen == 16
    choose(opened, "neighbors", "Outcome", "")
    page.get_by_role("button", name="a random query").click()
    assert count.inner_text() == "1 query"
    page.get_by_role("button", name="all queries").click()
    assert page.locator("#neighbors .query").first.locator(".neighbor-row").count() == 2
    page.get_by_label("controls and baselines").check()
    assert page.locator("#neighbors .query").first.locator(".neighbor-row").count() == 3
    choose(opened, "neighbors", "Modality", "flow")
    stages = opened.value("[...document.querySelectorAll('#neighbors .neighbor-row')].map((one) => one.dataset.stage)")
    assert set(stages) == {"infonce-flow", "cmsf-flow-1", "msf-flow"}
    page.locator("#neighbors input[type=search]").fill("v00000")
    page.locator("#neighbors input[type=search]").press("Enter")
    assert int(count.inner_text().split()[0]) <= 1


def test_frames_are_green_or_red_by_the_true_class(written: Path, open_page: Any) -> None:
    opened = open_page(written)
    opened.page.wait_for_selector("#neighbors .query")
    pairs = opened.value(
        """[...document.querySelectorAll('#neighbors .query')].flatMap((card) => {
          const own = card.querySelector('.query-panel .class-name').textContent;
          return [...card.querySelectorAll('.neighbor-row .clip')].map((clip) => [
            clip.querySelector('.class-name').textContent === own, clip.classList.contains('right'),
            clip.querySelector('.sign').textContent]); })"""
    )
    assert len(pairs) > 20 and all((same, sign) == (right, "✓" if right else "✗") for same, right, sign in pairs)


def test_the_numbers_of_the_page_are_those_of_the_table(written: Path, plan: Path, open_page: Any) -> None:
    opened = open_page(written)
    opened.page.wait_for_selector("#errors .changed")
    found = opened.value(
        """(() => { const gallery = Page.data["gallery-0"], m = Page.metrics;
          return gallery.stages.map((stage) => ({name: stage.name, recall: m.recall(gallery, stage),
            byClass: m.byClass(gallery, stage), confusion: m.confusion(gallery, stage),
            changes: m.changes(gallery, gallery.stages[0], stage), ranks: stage.first_correct})); })()"""
    )
    first = found[0]["ranks"]
    for one in found:
        retrieval = json.loads((plan / one["name"] / "retrieval.json").read_text())
        assert one["recall"] == pytest.approx(retrieval["recall"]["1"])
        rates = [100 * hits / count for _, (hits, count) in sorted(one["byClass"].items())]
        assert rates == pytest.approx(list(retrieval["per_class"].values()))
        diagonal = [one["confusion"][i][i] for i in range(4)]
        assert diagonal == [hits for _, (hits, _) in sorted(one["byClass"].items())]
        gains = [(1 / b if b else 0) - (1 / a if a else 0) for a, b in zip(first, one["ranks"], strict=True)]
        best = sorted((gain for gain in gains if gain > 0), reverse=True)[:10]
        worst = sorted(gain for gain in gains if gain < 0)[:10]
        assert [change["change"] for change in one["changes"]["improved"]] == pytest.approx(best)
        assert [change["change"] for change in one["changes"]["hurt"]] == pytest.approx(worst)


def test_clips_can_be_stopped_and_stand_still_where_the_system_says_so(written: Path, open_page: Any) -> None:
    opened = open_page(written)
    opened.page.wait_for_selector("#neighbors .query img.loop")
    query = opened.page.locator("#neighbors .query").first
    query.scroll_into_view_if_needed()
    loops, stills = query.locator("img.loop"), query.locator("canvas.still")
    of_query = "document.querySelector('#neighbors .query').querySelectorAll('img.loop')"
    opened.page.wait_for_function(f"() => [...{of_query}].every((one) => one.complete && one.naturalWidth)")
    shown = loops.count()
    opened.page.get_by_label("Pause the clips").click()
    assert (loops.count(), stills.count()) == (0, shown) and shown > 2
    assert stills.first.bounding_box()["width"] > 20 and ", RGB" in stills.first.get_attribute("aria-label")
    opened.page.get_by_label("Play the clips").click()
    assert (loops.count(), stills.count()) == (shown, 0)
    quiet = open_page(written, reduced_motion="reduce")
    quiet.page.locator("#neighbors").scroll_into_view_if_needed()
    quiet.page.wait_for_selector("#neighbors .query canvas.still")


def test_chips_switch_curves_off_and_hover_shows_the_clip(written: Path, open_page: Any) -> None:
    opened = open_page(written)
    see_all(opened)
    traces = "document.querySelector('[data-chart=curve-loss-infonce]').data.length"
    before = opened.value(traces)
    opened.page.locator("#curves .chip", has_text="infonce-rgb").click()
    opened.page.wait_for_function(f"() => {traces} === {before - 1}")
    values = [None if i == 7 else (37 * i) % 11 for i in range(65)]
    found = opened.value(f"Page.smooth({json.dumps(values)})")
    assert found == [pytest.approx(value) for value in smooth(values)]
    opened.page.locator("#map").scroll_into_view_if_needed()
    opened.page.locator("[data-chart=map-after] .point").first.hover(force=True)
    opened.page.wait_for_selector("#hover-card:not([hidden]) img")


def test_a_curve_that_no_run_has_says_what_would_log_it(written: Path, open_page: Any) -> None:
    opened = open_page(written)
    opened.page.wait_for_selector("#curves h3")
    missing = opened.page.locator("#curves .missing")
    assert missing.count() == 1 and "No run was asked for this" in missing.inner_text()
    assert missing.locator("code").inner_text() == "runtime.knn_every_epochs=5"


def test_the_theme_can_be_switched_and_is_remembered(written: Path, open_page: Any) -> None:
    opened = open_page(written, color_scheme="light")
    opened.page.locator("#theme").click()
    assert opened.value("document.documentElement.dataset.theme") == "dark"
    opened.page.reload()
    opened.page.wait_for_selector("html[data-ready]")
    assert opened.value("Page.theme.current()") == "dark"


def test_a_phone_can_read_it_without_scrolling_sideways(written: Path, open_page: Any) -> None:
    opened = open_page(written, viewport={"width": 390, "height": 844}, device_scale_factor=2)
    see_all(opened)
    assert opened.value("document.documentElement.scrollWidth") == 390


def test_several_plans_are_compared_and_can_be_chosen(plan: Path, clips: Path, tmp_path: Path, open_page: Any) -> None:
    other = make_plan(tmp_path / "other", clips, seeds=[0, 1], done=["infonce-rgb"])
    Report([plan, other], tmp_path / "report", ReportOptions(num_queries=4, pictures=False)).write(figures=False)
    opened = open_page(tmp_path / "report")
    see_all(opened)
    assert opened.page.locator("#comparison .groups li").count() == 1  # they differ in nothing but the seeds
    assert "±" in opened.page.locator("#comparison table").inner_text()
    opened.page.locator("nav select").select_option("1")
    see_all(opened)
    assert "to do" in opened.page.locator("#overview .results").inner_text()
    to_go_on = opened.page.locator("#overview .missing code").first.inner_text()
    assert to_go_on == f"covid-cmsf cotrain {other}/plan.json --out {other}"


def test_a_run_without_results_says_what_is_missing(plan: Path, tmp_path: Path, open_page: Any) -> None:
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy(plan / "infonce-rgb" / name, tmp_path / "run")
    Report([tmp_path / "run"], tmp_path / "report", ReportOptions(clips="/gone")).write(figures=False)
    opened = open_page(tmp_path / "report")
    see_all(opened)
    missing, run = opened.page.locator("main .missing"), tmp_path / "run"
    commands = missing.locator("code").all_text_contents()
    assert len(commands) == missing.count() > 5 and all(one.startswith("covid-cmsf ") for one in commands), commands
    assert f"covid-cmsf report {run} --out {tmp_path / 'report'} --clips CLIPS" in commands
    assert f"covid-cmsf report {run} OTHER --out {tmp_path / 'report'} --clips /gone" in commands
    assert f"covid-cmsf train {run}/config.yaml --out {run} runtime.knn_every_epochs=5" in commands
    assert (
        opened.page.locator("#provenance .missing code").inner_text()
        == commands[-1]
        == (f"covid-cmsf train {run}/config.yaml --out {run}")
    )
    for section in ("overview", "neighbors", "map", "errors"):
        assert "covid-cmsf extract" in opened.page.locator(f"#{section} .missing").inner_text()
    assert opened.page.locator("#overview .chart").count() == 0  # no axes without values
    assert "--clips" in opened.page.locator("#data .missing").inner_text()
    assert opened.page.locator("#curves .chart").count() > 0


def test_videos_without_labels_have_neighbors_and_a_map_and_nothing_is_right_or_wrong(
    plan: Path, clips: Path, tmp_path: Path, open_page: Any
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy(plan / "infonce-rgb" / name, run)
    features = load_features(plan / "infonce-rgb" / "features.safetensors")
    videos = features.videos
    bare = replace(videos, labels=torch.full_like(videos.labels, -1), subsets=("train",) * len(videos))
    save_features(run / "features.safetensors", replace(features, videos=bare))
    Report([run], tmp_path / "report", ReportOptions(num_queries=8, num_neighbors=4)).write(figures=False)
    opened = open_page(tmp_path / "report")
    see_all(opened)
    page = opened.page
    assert page.locator("#neighbors .query").count() > 0 and page.locator("#neighbors .neighbor-row .clip").count() > 4
    assert page.locator("#neighbors .right, #neighbors .wrong, #neighbors .badge, #neighbors .sign").count() == 0
    assert page.locator("#map .chart").count() == 1
    assert "need labels" in page.locator("#errors .missing").inner_text()
    assert page.locator("#overview .chart").count() == 0


def test_the_words_of_the_table_are_explained_and_chance_is_told(written: Path, open_page: Any) -> None:
    page = open_page(written).page
    assert "A random ranking has: R@1 25.0" in page.locator("#overview").inner_text()
    page.locator("#overview details.meanings summary").click()
    legend = page.locator("#overview details.meanings").inner_text()
    assert all(word in legend for word in ("CMSF n/k", "Init", "Rank", "msf")) and "oracle" not in legend


def test_a_followed_report_is_refreshed_and_keeps_filters_and_place(plan: Path, tmp_path: Path, open_page: Any) -> None:
    copy = tmp_path / "plan"
    shutil.copytree(plan, copy)
    report = Report([copy], tmp_path / "report", ReportOptions(num_queries=8, pictures=False))
    report.write(live=0.3, figures=False)
    server = serve_folder(tmp_path / "report", 0)
    try:
        opened = open_page(server_url(server))
        opened.page.wait_for_selector("#neighbors .query")
        see_all(opened)
        choose(opened, "neighbors", "Class", "1")
        opened.page.evaluate("document.getElementById('neighbors').scrollIntoView({ behavior: 'instant' })")
        opened.drawn()
        place = opened.value("document.getElementById('neighbors').getBoundingClientRect().top")
        with (copy / "cmsf-rgb-1" / "metrics.jsonl").open("a") as file:
            file.write('{"step": 999, "epoch": 2, "loss": 0.01}\n')
        report.write(live=0.3, figures=False)
        newest = "() => Page.data.report.curves.lines.some((line) => line.curve.step.includes(999))"
        opened.page.wait_for_function(newest)
        opened.drawn()
        classes = opened.value("[...document.querySelectorAll('#neighbors .query')].map((one) => one.dataset.class)")
        assert classes and set(classes) == {"1"}
        now = opened.value("document.getElementById('neighbors').getBoundingClientRect().top")
        assert now == pytest.approx(place, abs=40)
        opened.page.evaluate("document.getElementById('curves').scrollIntoView()")
        opened.page.wait_for_function(
            "() => document.querySelector('[data-chart=curve-loss-mean-shift]').data.some((one) => one.x.includes(999))"
        )
    finally:
        server.shutdown()
