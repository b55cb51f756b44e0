"""Readers of files that others made: they read, or refuse with the file's name. Findings are kept in corpus/.

More than the suite does, with other random choices each time:

    COVID_CMSF_FUZZ_EXAMPLES=20000 python -m pytest tests/fuzz
"""

import hashlib
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fuzz.binary_targets import BINARY_TARGETS
from tests.fuzz.folder_targets import FOLDER_TARGETS
from tests.fuzz.targets import Target
from tests.fuzz.text_targets import TEXT_TARGETS
from tests.fuzz.watch import FindingError, check

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = int(os.environ.get("COVID_CMSF_FUZZ_EXAMPLES", "0"))
# Where files that led to a finding are kept: the corpus, which the suite reads from then on. Empty: nowhere.
FINDINGS = os.environ.get("COVID_CMSF_FUZZ_FINDINGS", str(CORPUS))
TARGETS = [*TEXT_TARGETS, *BINARY_TARGETS, *FOLDER_TARGETS]
IDENTIFIERS = [target.name for target in TARGETS]


def corpus_folder(target: Target) -> Path:
    return CORPUS / re.sub(r"[^\w.]+", "-", target.name)


def read_damaged(target: Target, path: Path, data: bytes) -> bool:
    path.write_bytes(data)
    target.prepare(path)
    try:
        return check(target.read, path, tuple(filter(None, (path.name, target.named))))
    except FindingError:
        if FINDINGS:
            kept = Path(FINDINGS) / corpus_folder(target).name / f"{hashlib.sha256(data).hexdigest()[:12]}.bin"
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)
        raise


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=IDENTIFIERS)
def test_a_damaged_file_is_read_or_refused_by_name(target: Target, tmp_path: Path) -> None:
    path = target.write(tmp_path)
    valid = path.read_bytes()
    assert read_damaged(target, path, valid), "the valid file is refused"

    @settings(
        max_examples=EXAMPLES or 25,
        derandomize=not EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(data=target.damage(valid))
    def run(data: bytes) -> None:
        read_damaged(target, path, data)

    run()
