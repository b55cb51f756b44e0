"""Machine-readable log lines."""

import json
import logging
from pathlib import Path

import pytest

from covid_cmsf.logs import add_jsonl_file, format_bytes, format_duration, printable, remove_handler, setup_logging


def test_every_record_becomes_one_json_line_with_its_fields(tmp_path: Path) -> None:
    setup_logging()
    handler = add_jsonl_file(tmp_path / "log.jsonl")
    logger = logging.getLogger("covid_cmsf.test")
    try:
        logger.info("epoch\ndone", extra={"fields": {"loss": 0.5}})
        try:
            raise RuntimeError("broken")
        except RuntimeError:
            logger.exception("oh")
    finally:
        remove_handler(handler)
    logger.info("after the handler was removed")
    first, second = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert first["message"] == "epoch\ndone" and first["loss"] == 0.5 and first["level"] == "info"
    assert "RuntimeError: broken" in second["traceback"]


def test_escape_codes_in_names_do_not_reach_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    setup_logging()
    logging.getLogger("preprocess.test").warning("skipped %s", "\x1b]0;owned\x07\x1b[2J\x9b31m")
    text = capfd.readouterr().err
    assert "\x1b]" not in text and "\x07" not in text and "\x9b" not in text
    assert r"\x1b]0;owned\x07\x1b[2J\x9b31m" in text.replace("\n", "").replace(" " * 20, "")
    assert printable("tab\tand\nlines") == "tab\tand\nlines"


def test_durations_and_sizes_have_units_that_fit() -> None:
    assert [format_duration(seconds) for seconds in (30, 1800, 9000)] == ["30 s", "30 min", "2.5 h"]
    assert [format_duration(seconds) for seconds in (0.01, 0.9, 1.6e6)] == ["under 1 s", "under 1 s", "19 days"]
    sizes = (20_000, 3_400_000, 5.5e9, 2e12)
    assert [format_bytes(size) for size in sizes] == ["20 kB", "3.4 MB", "5.5 GB", "2.0 TB"]
