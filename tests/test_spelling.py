"""American spelling, and none of the names that were replaced by the field's."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Not searched: this list, other people's files, files of version 0.1.0 for tests, and the history of changes.
EXCLUDED = (
    "tests/test_spelling.py",
    "tests/data/",
    "tests/fuzz/corpus/",
    "covid_cmsf/report/vendor/",
    "CHANGELOG.md",
    "LICENSE",
)

BRITISH = re.compile(
    r"""
    colour | favour | behaviour | neighbour | honour | rumour | \bgrey
    | \bcentre | centring | \b(kilo|milli|centi)?metres?\b | \blitre
    | (label|model|signal|cancel|travel|channel|level)l(ed|ing)\b
    | catalogue | artefact | \blicence\b | learnt | towards | whilst | amongst | \bprogramme\b | \bcheque
    | analys(e|ed|er|ing)\b
    | (optim|normal|standard|recogn|summar|synchron|minim|maxim|quant|linear|vector|regular|penal|memor|initial|random
       |serial|organ|parallel|visual|general|discret|categor|token|factor|real|util|special|final|emphas|local|material
       |stabil|equal|priorit|capital|custom|character|symbol|homogen)is(e|ed|er|ers|es|ing|ation|ations)\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
OLD_NAMES = """
    BatchNormSettings ByolSettings CmsfSettings ContrastSettings DemoSettings Describer EncoderCard ExampleLosses
    GuideSettings Heart JpegFolder LabelledClips OptimiserSettings OwnRows PlanSettings Recognised RuntimeSettings
    ScheduleSettings Showing ShownVideos StageSettings TrainSettings ViewSettings WatchSettings
    _bury _obey_the_next _pass_on_the_signal _say_the_end _say_what_happens _set_aside _start_what_is_ready _stop_here
    baseline_subjects bank_facts bank_rows build_optimiser card_of check_up clip_testing clips_identity cut_patch
    data_files draw_look draw_shot example_losses features_words flow_codes foreign_card have_own_file_names how_of
    in_words is_jpeg_folder jpeg_folder known_share labelled_clips load_optimiser_ make_setups method_words noisy_part
    open_parts our_parts own_rows parse_address parts_of pca_shares read_card read_codes remove_log report_set_aside
    run_folder set_aside shown_to shown_videos slow_copy stage_work start_rows stated_frames store_setup subject_of
""".split()
# Keys of files of version 0.1.0, in the modules that read them; names of other projects.
ALLOWED = {
    "mkdocs.yml": {"grey"},  # mkdocs-material's color "blue grey"
    "covid_cmsf/clips/export.py": {"data_files"},  # of Hugging Face's README.md
    "tests/clips/test_export.py": {"data_files"},
    "covid_cmsf/evaluation/features/old_formats.py": {"set_aside"},
    "covid_cmsf/models/checkpoints/formats/native.py": {"optimiser"},
    "covid_cmsf/training/monitor.py": {"bank_rows"},
}
OLD_PHRASES = re.compile(r"\b(set aside|sets aside|setting aside)\b", re.IGNORECASE)


def text_files() -> dict[str, str]:
    """Return {path: text} of the tracked text files."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    texts = {}
    for path in listed.stdout.decode().rstrip("\0").split("\0"):
        if path.startswith(EXCLUDED) or not (ROOT / path).is_file():
            continue
        data = (ROOT / path).read_bytes()
        if b"\0" not in data:
            texts[path] = data.decode()
    assert len(texts) > 200
    return texts


def find_all(pattern: re.Pattern[str], texts: dict[str, str]) -> Iterator[str]:
    for path, text in texts.items():
        for number, line in enumerate(text.splitlines(), start=1):
            for match in pattern.finditer(line):
                if match[0].lower() not in ALLOWED.get(path, ()):
                    yield f"{path}:{number}: {match[0]}"


def test_spelling_is_american() -> None:
    found = list(find_all(BRITISH, text_files()))
    assert not found, "\n".join(found)


def test_old_names_are_gone() -> None:
    texts = text_files()
    names = re.compile(r"\b(" + "|".join(OLD_NAMES) + r")\b")
    found = [*find_all(names, texts), *find_all(OLD_PHRASES, texts)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["the colour", "a neighbour", "Optimiser", "normalised", "quantisation", "the centre", "labelled", "grey"]
)
def test_british_spellings_are_found(text: str) -> None:
    assert BRITISH.search(text)


@pytest.mark.parametrize(
    "text",
    ["precise, otherwise, noise", "advised and revised", "analyses", "center, color, gray", "labeled, parameter"],
)
def test_other_words_are_not(text: str) -> None:
    assert not BRITISH.search(text)
