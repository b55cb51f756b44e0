"""`clips check` finds every kind of fault; merging refuses what does not belong together."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.acceptance import accept_failures
from covid_cmsf.clips.contact_sheet import pick_examples
from covid_cmsf.clips.fingerprint import files_fingerprint
from covid_cmsf.clips.maintenance import check_store, merge_stores, summarize
from covid_cmsf.clips.records import Failure, read_manifest, write_failures, write_manifest, write_split

V0 = Path(__file__).parents[1] / "data" / "v0"


@pytest.fixture
def copy(finished_store: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished_store, tmp_path / "copy"))


def faults(path: Path, num_workers: int = 1) -> list[str]:
    return check_store(ClipStore.open(path), num_workers=num_workers)


@pytest.mark.slow
def test_a_whole_store_has_no_faults_with_any_number_of_workers(finished_store: Path) -> None:
    assert faults(finished_store) == faults(finished_store, num_workers=2) == []


def first_file(path: Path, modality: str) -> Path:
    return path / modality / f"{ClipStore.open(path).records[0].video_id}.mp4"


def test_missing_truncated_and_exchanged_files_are_found_in_stores_without_hashes(copy: Path) -> None:
    records = [
        replace(record, rgb_bytes=0, flow_bytes=0, rgb_sha256="", flow_sha256="")
        for record in read_manifest(copy / "manifest.csv")
    ]
    write_manifest(copy / "manifest.csv", records)
    assert "rgb_sha256" not in (copy / "manifest.csv").read_text()
    first_file(copy, "rgb").unlink()
    assert [fault.split()[-2:] for fault in faults(copy)] == [["is", "missing"]]
    first_file(copy, "rgb").write_bytes(b"")
    assert "cannot open" in faults(copy)[0]
    shutil.copy(first_file(copy, "flow"), first_file(copy, "rgb"))
    assert "has 19 frames, the manifest says 20" in faults(copy)[0]


@pytest.mark.parametrize("modality", ["rgb", "flow"])
def test_a_file_that_was_replaced_in_place_is_found(copy: Path, modality: str) -> None:
    store = ClipStore.open(copy)
    first, second = store.records[:2]
    paths = [copy / modality / f"{record.video_id}.mp4" for record in (first, second)]
    shutil.copy(paths[1], paths[0])  # same numbers of frames, same sizes of frames
    assert f"{paths[0]}: it has {paths[1].stat().st_size} bytes, but" in faults(copy)[0]
    with pytest.raises(ValueError, match="it was replaced or cut; `covid-cmsf clips check` finds"):
        store.read_raw(first, modality, [0])
    original = getattr(first, f"{modality}_bytes")
    paths[0].write_bytes(paths[1].read_bytes()[:original].ljust(original, b"\0"))  # now also the same number of bytes
    assert f"{paths[0]}: its SHA-256 is another one" in faults(copy)[0]


def test_one_flipped_bit_is_found(copy: Path) -> None:
    data = bytearray(first_file(copy, "rgb").read_bytes())
    data[data.index(b"x264 - core")] ^= 1  # a comment inside the stream: every frame decodes as before
    first_file(copy, "rgb").write_bytes(data)
    (fault,) = faults(copy)
    assert fault.startswith(f"{first_file(copy, 'rgb')}: its SHA-256 is another one than when it was written")
    store = ClipStore.open(copy)
    with pytest.raises(ValueError, match="its SHA-256 is another one"):
        store.read_raw(store.records[0], "rgb", [0])
    assert store.read_raw(store.records[0], "flow", [0]).shape == (1, 2, 48, 64)


def test_the_fingerprint_changes_with_the_files_and_not_without(copy: Path) -> None:
    store = ClipStore.open(copy)
    before = files_fingerprint(store, store.records, ("rgb",))
    assert before == files_fingerprint(ClipStore.open(copy), store.records, ("rgb",)) != ""
    flow_only = files_fingerprint(store, store.records, ("flow",))
    path = first_file(copy, "rgb")
    path.write_bytes(path.read_bytes())
    os.utime(path, ns=(1, 1))
    assert files_fingerprint(store, store.records, ("rgb",)) != before
    assert files_fingerprint(store, store.records[1:], ("rgb",)) != before
    assert files_fingerprint(store, store.records, ("flow",)) == flow_only
    path.unlink()
    assert files_fingerprint(store, store.records, ("rgb",)) != before


def test_skipped_videos_can_be_accepted_until_they_fail_differently(copy: Path, tmp_path: Path) -> None:
    failures = [Failure(name, "open", "no video") for name in ("a/x", "a/y")]
    write_failures(copy / "failures.csv", failures)
    with pytest.raises(ValueError, match=r"'a/z' is not in .*failures.csv; videos there: a/x, a/y"):
        accept_failures(copy, ["a/z"])
    assert ClipStore.open(copy).accepted == []
    assert accept_failures(copy, ["a/y"]) == failures[1:] and accept_failures(copy, ["a/y"]) == []
    assert ClipStore.open(copy).accepted == failures[1:]
    assert accept_failures(copy) == failures[:1]
    merge_stores([ClipStore.open(copy)], tmp_path / "merged")
    assert ClipStore.open(tmp_path / "merged").accepted == failures
    write_failures(copy / "failures.csv", [replace(failures[0], reason="too long"), failures[1]])
    assert ClipStore.open(copy).accepted == failures[1:]


def test_orphans_are_found(copy: Path) -> None:
    shutil.copy(first_file(copy, "rgb"), copy / "rgb" / "stray.mp4")
    assert faults(copy) == [f"{copy / 'rgb' / 'stray.mp4'} is in no record"]


def test_tables_that_contradict_each_other_are_found(copy: Path) -> None:
    records = read_manifest(copy / "manifest.csv")
    write_split(copy / "splits" / "1.csv", {"nobody": "train"})
    write_failures(copy / "failures.csv", [Failure(records[0].video_id, "open", "?")])
    write_manifest(copy / "manifest.csv", [replace(records[0], class_name="Other", num_flow=3), *records[1:]])
    text = "\n".join(faults(copy))
    for message in ("'nobody'", "both in the manifest and in failures.csv", "means both", "but 3 flow frames"):
        assert message in text


def test_a_class_with_two_labels_is_found(copy: Path) -> None:
    records = read_manifest(copy / "manifest.csv")
    write_manifest(copy / "manifest.csv", [replace(records[0], label=99), *records[1:]])
    same = [record for record in records[1:] if record.class_name == records[0].class_name]
    assert same and any(f"class {same[0].class_name!r} has both label 99 and" in fault for fault in faults(copy))


def test_the_same_file_in_two_classes_or_two_subsets_is_found(copy: Path) -> None:
    records = read_manifest(copy / "manifest.csv")
    first, second, *others = [replace(record, source_sha256=str(i)) for i, record in enumerate(records)]
    second = replace(second, source_sha256=first.source_sha256)
    write_manifest(copy / "manifest.csv", [first, second, *others])
    write_split(copy / "splits" / "1.csv", {first.video_id: "train", second.video_id: "train"})
    assert faults(copy) == [], "the same file twice in one class and subset harms nothing"
    write_split(copy / "splits" / "2.csv", {first.video_id: "train", second.video_id: "test"})
    same = f"{first.video_id!r} and {second.video_id!r} are the same file"
    assert faults(copy) == [f"{same}, in the subsets test and train of split 2"]
    other = replace(second, class_name="bowling", label=1)
    write_manifest(copy / "manifest.csv", [first, other, *others])
    assert f"{same}, in the classes 'Archery' and 'bowling'" in faults(copy)


def test_the_summary_counts_what_is_there(finished_store: Path) -> None:
    summary = summarize(ClipStore.open(finished_store))
    assert (summary.num_videos, summary.num_sources, summary.num_frames) == (6, 6, 120)
    assert summary.subsets["1"] == {"test": 6} and summary.classes["Archery"]["2"] == {"train": 3}
    assert summary.hours == pytest.approx(120 / 25 / 3600)
    assert summary.bytes["rgb"] == sum(path.stat().st_size for path in (finished_store / "rgb").rglob("*.mp4"))
    assert summary.flow is not None and 0 < summary.flow["mean_magnitude_px"] < 3
    error = 0.3826 * 4 / 127 / summary.flow["mean_magnitude_px"]
    assert summary.flow["bound_px"] == 4 and summary.flow["quantization_error"] == pytest.approx(error)


def test_info_prints_the_quantization_error_and_warns_of_coarse_flow(store: ClipStore) -> None:
    fine = CliRunner().invoke(app, ["clips", "info", str(store.path)])
    assert "% of the mean motion" in fine.output and "by size" in fine.output and "coarse" not in fine.output
    coarse = CliRunner().invoke(app, ["clips", "info", str(V0 / "clips")])  # bound 20 at short edge 48
    assert "the flow is coarse" in coarse.output and "--flow-bound" in coarse.output


def test_stores_that_differ_are_not_merged(finished_store: Path, copy: Path, tmp_path: Path) -> None:
    first = ClipStore.open(finished_store)
    (copy / "store.json").write_text((copy / "store.json").read_text().replace('"quality": 18', '"quality": 30'))
    with pytest.raises(ValueError, match="differ in quality: 18 and 30"):
        merge_stores([first, ClipStore.open(copy)], tmp_path / "out")
    with pytest.raises(FileExistsError, match="already is a finished store"):
        merge_stores([first], finished_store)


def test_stores_that_disagree_about_a_subset_are_not_merged(finished_store: Path, copy: Path, tmp_path: Path) -> None:
    first, second = ClipStore.open(finished_store), ClipStore.open(copy)
    name, split = next(iter(second.splits.items()))
    changed = {video_id: "train" if subset == "test" else "test" for video_id, subset in split.items()}
    write_split(copy / "splits" / f"{name}.csv", changed)
    with pytest.raises(ValueError, match="is listed twice, in"):
        merge_stores([first, ClipStore.open(copy)], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_merging_the_same_store_twice_gives_that_store(finished_store: Path, tmp_path: Path) -> None:
    store = ClipStore.open(finished_store)
    linked, copied = merge_stores([store, store], tmp_path / "out")
    assert linked + copied == 12
    assert ClipStore.open(tmp_path / "out").records == store.records


@pytest.mark.parametrize("outside", ["absolute", "../../x", "a/../../../x"])
def test_a_merge_never_touches_a_file_outside_its_folder(copy: Path, tmp_path: Path, outside: str) -> None:
    victim = tmp_path / "victim.mp4"
    victim.write_bytes(b"precious")
    video_id = str(victim.with_suffix("")) if outside == "absolute" else outside
    old = read_manifest(copy / "manifest.csv")[0].video_id
    table = (copy / "manifest.csv").read_text()
    (copy / "manifest.csv").write_text(table.replace(f'"{old}"', f'"{video_id}"'))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="a video id is a relative path") as caught:
        merge_stores([ClipStore.open(copy)], tmp_path / "a" / "b" / "out")
    assert repr(video_id) in str(caught.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_interrupted_merge_runs_again(finished_store: Path, tmp_path: Path) -> None:
    store = ClipStore.open(finished_store)
    for modality in ("rgb", "flow"):  # files of the first attempt, one of them damaged
        target = tmp_path / "out" / modality / f"{store.records[0].video_id}.mp4"
        target.parent.mkdir(parents=True)
        target.write_bytes(b"half")
    merge_stores([store], tmp_path / "out")
    assert faults(tmp_path / "out") == []
    assert not list((tmp_path / "out").rglob(".*.tmp"))


def test_examples_are_one_per_class_or_spread_over_unlabeled_videos(store: ClipStore) -> None:
    assert [r.class_name for r in pick_examples(store.records, 12)] == ["Archery", "bowling"]
    unlabeled = [replace(record, class_name="", label=-1) for record in store.records]
    assert pick_examples(unlabeled, 12) == unlabeled
    assert pick_examples(unlabeled, 3) == unlabeled[::2]
