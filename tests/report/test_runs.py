"""What a report reads: whole plans, half plans, single runs, seeds; and the table that the plan itself would print."""

import json
import shutil
from pathlib import Path

import pytest

from covid_cmsf.cotrain.run import build_graphs, check_folder
from covid_cmsf.report.plan_summary import plan_layout, plan_rows, read_plan_gains
from covid_cmsf.report.runs import read_run, read_runs, unique_names
from tests.report.plan_factories import begin_stage, make_plan, plan_config

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


def test_the_table_is_the_one_that_the_plan_wrote(plan: Path) -> None:
    written = json.loads((plan / "table.json").read_text())
    rows = plan_rows(read_run(plan, "plan"))
    assert [row["stage"] for row in rows] == [row["stage"] for row in written] and len(rows) == 7
    for row, own in zip(written, rows, strict=True):
        assert {name: own[name] for name in row} == row
        assert own["state"] == "done"


def test_several_seeds_have_mean_and_spread(seeds: Path) -> None:
    written = json.loads((seeds / "table.json").read_text())
    rows = plan_rows(read_run(seeds, "seeds"))
    for row, own in zip(written, rows, strict=True):
        assert {name: own[name] for name in row if name != "r1_interval"} == {
            name: value for name, value in row.items() if name != "r1_interval"
        }
    assert rows[1]["r1_sd"] is not None
    one = read_run(seeds / "seed-1", "seed-1")
    assert [own.seed for own in one.seeds] == [1] and plan_rows(one)[1]["r1"] == written[1]["r1_seeds"][1]


def test_a_half_finished_plan_says_how_far_it_is(clips: Path, tmp_path: Path) -> None:
    folder = make_plan(tmp_path / "half", clips, done=["infonce-rgb"])
    stages = build_graphs(plan_config(clips), folder, plan_dir=folder)[0]
    flow = next(stage for stage in stages if stage.name == "infonce-flow")
    begin_stage(flow, num_lines=8)  # two epochs of six
    with (flow.folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 90, "ep')  # as a writer may have left it just now
    rows = {row["stage"]: row for row in plan_rows(read_run(folder, "half"))}
    assert rows["infonce-rgb"]["state"] == "done" and rows["infonce-rgb"]["r1"] is not None
    assert rows["infonce-flow"]["state"] == "begun" and rows["infonce-flow"]["done_fraction"] == pytest.approx(2 / 6)
    later = rows["cmsf-flow-1"]
    assert later["state"] == "waiting" and later["model"] == "CMSF 4/2" and later["r1"] is None
    assert later["constraint"] == rows["cmsf-rgb-1"]["index"] and later["init"] == rows["infonce-flow"]["index"]


def test_a_stage_whose_settings_are_in_a_file_is_known_once_it_has_begun(clips: Path, tmp_path: Path) -> None:
    stages = [{"name": "first", "config": "first.yaml"}, {"name": "second", "config": "b.yaml", "init": "first"}]
    (tmp_path / "plan.json").write_text(json.dumps({"stages": stages}))
    rows = plan_rows(read_run(tmp_path, "listed"))
    assert [row["model"] for row in rows] == ["not started", "not started"] and rows[1]["init"] == "1"


def test_a_single_run_is_a_plan_of_one_stage(plan: Path, tmp_path: Path) -> None:
    run = tmp_path / "my run (1)"
    run.mkdir()
    for name in ("config.yaml", "metrics.jsonl"):
        shutil.copy(plan / "cmsf-rgb-1" / name, run)
    read = read_run(run, "run")
    (row,) = plan_rows(read)
    assert read.config is None and row["model"] == "CMSF 4/2" and row["state"] == "begun" and row["r1"] is None
    assert row["constraint"].endswith("infonce-flow/checkpoints/last.pt")
    for name in ("summary.json", "retrieval.json", "linear.json"):
        shutil.copy(plan / "cmsf-rgb-1" / name, run)
    (row,) = plan_rows(read_run(run, "run"))
    result = json.loads((plan / "cmsf-rgb-1" / "stage.json").read_text())
    assert row["state"] == "done" and (row["r1"], row["linear"]) == (result["r1"], result["linear"])


def test_a_project_of_learn_is_its_plan(plan: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "project.json").write_text("{}")
    with pytest.raises(ValueError, match="neither the folder of a plan"):  # nothing has been trained yet
        read_run(tmp_path / "mine", "mine")
    shutil.copytree(plan, tmp_path / "mine" / "runs")
    found = read_run(tmp_path / "mine", "mine")
    assert found.name == "mine" and found.folder == tmp_path / "mine" / "runs" and len(found.stages) == 6


def test_other_folders_are_refused(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        read_run(tmp_path / "nothing", "nothing")
    with pytest.raises(ValueError, match="neither the folder of a plan"):
        read_run(tmp_path, "empty")
    with pytest.raises(ValueError, match="is given twice"):
        read_runs([plan, plan])
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged"):
        read_run(tmp_path, "damaged")


def test_a_damaged_result_is_noted_and_the_rest_is_shown(plan: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(plan, copy)
    (copy / "msf-rgb" / "linear.json").write_text("{")
    stage = next(stage for stage in read_run(copy, "copy").stages if stage.name == "msf-rgb")
    assert len(stage.notes) == 1 and "linear.json is damaged" in stage.notes[0] and stage.retrieval


def test_folders_are_called_by_what_tells_them_apart() -> None:
    assert unique_names([Path("/a/x"), Path("/b/y")]) == ["x", "y"]
    assert unique_names([Path("/a/x"), Path("/b/x")]) == ["a/x", "b/x"]


def test_the_picture_has_every_stage_in_a_place_of_its_own_after_what_it_needs(plan: Path) -> None:
    stages = read_run(plan, "plan").first_seed.stages
    layout = plan_layout(stages)
    places = {node.stage: node for node in layout.nodes}
    assert set(places) == {stage.name for stage in stages}
    assert len({(node.column, node.row) for node in layout.nodes}) == len(stages)
    for edge in layout.edges:
        assert places[edge.start].column < places[edge.end].column
    assert ("infonce-flow", "cmsf-rgb-1", "guide") in {(edge.start, edge.end, edge.kind) for edge in layout.edges}
    # rounds are where the lanes meet
    assert places["cmsf-rgb-1"].row + 1 == places["cmsf-flow-1"].row


def test_a_yaml_bomb_in_a_run_is_refused(tmp_path: Path) -> None:
    """Faults, low: it took the report to 3 GB."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 8)}]" for n in range(1, 12)]
    (tmp_path / "config.yaml").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=r"config.yaml has more than 20,000 keys and values"):
        read_run(tmp_path, "run")


def test_a_plan_of_version_0_1_0_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text('{"settings": {}, "start": {}, "shift": {}, "rounds": 1}')
    with pytest.raises(ValueError, match=r"plan.json was written by version 0.1.0") as caught:
        read_run(tmp_path, "plan")
    assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"use another folder for the plan"):
        check_folder(tmp_path)


def test_gains_are_those_that_the_plan_wrote_and_older_stages_are_named(seeds: Path, tmp_path: Path) -> None:
    gains = read_plan_gains(read_run(seeds, "seeds"))
    assert gains.rows == json.loads((seeds / "gains.json").read_text()) and gains.unanswered == []
    assert {row["num_seeds"] for row in gains.rows} == {2} and len(gains.rows) == 2
    (one, _) = read_plan_gains(read_run(seeds / "seed-1", "one")).rows
    assert one["num_seeds"] == 1
    copy = Path(shutil.copytree(seeds, tmp_path / "copy"))
    (copy / "seed-0" / "cmsf-rgb-1" / "answers.safetensors").unlink()
    older = read_plan_gains(read_run(copy, "copy"))
    assert older.unanswered == ["cmsf-rgb-1"] and [row["num_seeds"] for row in older.rows] == [1, 2]


def test_splits_are_read_with_their_seeds(clips: Path, tmp_path: Path) -> None:
    folder = make_plan(tmp_path / "splits", clips, splits=[1, 2], seeds=[0, 1], controls=[], baselines=[])
    read = read_run(folder, "splits")
    assert [one.label for one in read.seeds] == [f"split {split}, seed {seed}" for split in (1, 2) for seed in (0, 1)]
    written = json.loads((folder / "table.json").read_text())
    for row, own in zip(written, plan_rows(read), strict=True):
        assert {name: own[name] for name in row} == row and row["num_splits"] == 2
    assert read_plan_gains(read).rows == json.loads((folder / "gains.json").read_text())
    second = read_run(folder / "split-2", "second")
    assert [one.label for one in second.seeds] == ["split 2, seed 0", "split 2, seed 1"]
    assert [one.label for one in read_run(folder / "split-2" / "seed-1", "one").seeds] == ["split 2, seed 1"]
