"""What the report says about the clips."""

from pathlib import Path

from covid_cmsf.clips import open_clips
from covid_cmsf.report.dataset_summary import sample_records, summarize_dataset
from tests.evaluation.factories import SyntheticClips


def test_samples_are_of_all_classes(clips: Path) -> None:
    records = open_clips(clips).records
    chosen = sample_records(records, 10)
    assert len(chosen) == 10 and len({record.class_name for record in chosen}) == 4
    assert len({record.class_name for record in sample_records(records, 3)}) == 3
    assert len(sample_records(records, 999)) == len(records)


def test_facts_of_a_store_and_of_other_clips() -> None:
    summary = summarize_dataset(SyntheticClips(num_classes=3, num_sources=4))
    assert summary["num_videos"] == 24 and summary["subsets"] == {"1": {"test": 6, "train": 18}}
    assert summary["classes"]["c1"]["1"] == {"test": 2, "train": 6}


def test_facts_of_a_damaged_store_say_so(clips: Path, tmp_path: Path) -> None:
    store = open_clips(clips)
    assert summarize_dataset(store)["num_failures"] == 2 and summarize_dataset(store)["hours"] > 0
    store.path = tmp_path  # type: ignore[attr-defined]
    assert "is missing" in summarize_dataset(store)["problem"]
