"""The command `demo-videos`: options become settings, mistakes become clear messages."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from preprocess.synthetic.cli import demo_videos
from preprocess.synthetic.config import DemoConfig, parse_difficulty, parse_frame_size

SMALL = ["--classes", "2", "--groups", "2", "--clips-per-group", "1", "--frames", "3", "--size", "48x36"]


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command("demo-videos")(demo_videos)
    return app


def test_the_command_writes_a_set_and_then_has_nothing_to_do(app: typer.Typer, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "videos"), *SMALL, "--workers", "1", "--difficulty", "hard"]
    first, second = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert first.exit_code == second.exit_code == 0, first.output
    assert "4 of 4 videos written" in first.stdout
    assert "already has all 4 videos" in second.stdout
    assert len(list(tmp_path.rglob("*.avi"))) == 4


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("num_classes", 13, "classes is 13; it must be from 2 to 12"),
        ("num_groups", 1, "groups is 1; it must be from 2 to 99"),
        ("clips_per_group", 0, "clips per group is 0"),
        ("num_frames", 1, "frames is 1"),
        ("width", 49, "size 49x84: the codec needs an even width and height"),
        ("height", 8, "height is 8"),
        ("fps", 0, "fps is 0"),
        ("seed", -1, "seed is -1"),
        ("difficulty", 1.5, "difficulty is 1.5; it must be from 0.0 to 1.0"),
        ("difficulty", float("nan"), "difficulty is nan"),
    ],
)
def test_a_bad_setting_is_named_with_what_would_be_accepted(setting: str, value: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DemoConfig(**{setting: value})  # type: ignore[arg-type]


def test_difficulty_is_a_word_or_a_number() -> None:
    assert parse_difficulty("easy") < parse_difficulty("medium") < parse_difficulty("hard")
    assert parse_difficulty("0.3") == 0.3
    with pytest.raises(ValueError, match="'tough': choose from easy, medium, hard, or a number"):
        parse_difficulty("tough")


def test_size_is_width_by_height() -> None:
    assert parse_frame_size("112x84") == (112, 84)
    for wrong in ("112", "112x", "axb", "112x84x3", "-4x8"):
        with pytest.raises(ValueError, match="is not WIDTHxHEIGHT"):
            parse_frame_size(wrong)
