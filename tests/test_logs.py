"""Machine-readable log lines."""

import json
import logging
from pathlib import Path

from covid_cmsf.logs import add_jsonl_file, remove_handler, setup_logging


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
