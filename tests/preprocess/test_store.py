"""The ledger: at most one outcome a video, first come first served."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from covid_cmsf.clips.records import ClipRecord, Failure
from preprocess.store import Ledger

RECORD = ClipRecord('c/odd, "name" \udce9', "s", "c", 0, 5, 4, 25.0, 64, 48, "00")


def test_the_first_outcome_stays(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.outcome(RECORD.video_id) is None
    assert ledger.write(RECORD)
    assert not ledger.write(Failure(RECORD.video_id, "decode", "too late"))
    assert ledger.outcome(RECORD.video_id) == RECORD
    assert list(Ledger(tmp_path).outcomes()) == [RECORD]


@pytest.mark.parametrize(
    "change", [(b"25.0", b"29.0"), (b'": ', b'";'), (b"ClipRecord", b"ClipRecorD"), (b"c/odd", b"\xff")]
)
def test_a_damaged_outcome_is_refused_by_name(tmp_path: Path, change: tuple[bytes, bytes]) -> None:
    ledger = Ledger(tmp_path)
    ledger.write(RECORD)
    (path,) = tmp_path.glob("??/*.json")
    path.write_bytes(path.read_bytes().replace(*change, 1))
    with pytest.raises(ValueError, match=rf"{path.name} is damaged"):
        ledger.outcomes()


def test_an_outcome_without_a_hash_is_read(tmp_path: Path) -> None:
    """As version 0.1.0 wrote it."""
    ledger = Ledger(tmp_path)
    ledger.write(RECORD)
    (path,) = tmp_path.glob("??/*.json")
    values = json.loads(path.read_text())
    del values["sha256"]
    path.write_text(json.dumps(values))
    assert ledger.outcomes() == [RECORD]


def test_a_failure_can_be_forgotten_and_tried_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write(Failure(RECORD.video_id, "decode", "why"))
    ledger.remove(RECORD.video_id)
    assert ledger.write(RECORD) and ledger.outcome(RECORD.video_id) == RECORD


def test_nothing_temporary_is_left(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write(RECORD)
    ledger.write(RECORD)
    assert [path.suffix for path in tmp_path.rglob("*") if path.is_file()] == [".json"]


def test_an_id_that_leads_out_of_the_store_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write(replace(RECORD, video_id="../../x"))
    with pytest.raises(ValueError, match="a video id is a relative path"):
        list(ledger.outcomes())


def test_a_ledger_is_read_once_and_then_only_what_is_new_or_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [replace(RECORD, video_id=f"v{number}") for number in range(6)]
    for record in records:
        Ledger(tmp_path).write(record)
    read: list[str] = []
    plain_read = Ledger._read

    def counted_read(path: Path) -> ClipRecord | Failure | None:
        read.append(path.name)
        return plain_read(path)

    monkeypatch.setattr(Ledger, "_read", staticmethod(counted_read))
    ledger = Ledger(tmp_path)
    assert len(ledger.outcomes()) == 6 and len(read) == 6
    assert len(ledger.outcomes()) == 6 and len(read) == 6
    other = Ledger(tmp_path)  # another process adds one, and replaces one
    other.write(replace(RECORD, video_id="new"))
    other.remove("v3")
    other.write(Failure("v3", "decode", "why"))
    outcomes = {outcome.video_id: outcome for outcome in ledger.outcomes()}
    assert len(outcomes) == 7 and isinstance(outcomes["v3"], Failure) and len(read) == 8
    other.remove("v1")
    assert "v1" not in {outcome.video_id for outcome in ledger.outcomes()} and len(read) == 8
