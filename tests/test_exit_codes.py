"""Errors at the command line: one line, the right exit code, a traceback only on request."""

import errno
import sys

import pytest
import typer

from covid_cmsf import exit_codes


def run(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, *flags: str) -> int:
    app = typer.Typer(pretty_exceptions_enable=False)

    @app.command()
    def command() -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(sys, "argv", ["covid-cmsf", *flags])
    with pytest.raises(SystemExit) as stop:
        exit_codes.run_app(app)
    return int(stop.value.code or 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (None, exit_codes.SUCCESS),
        (ValueError("unknown encoder 's3dd'"), exit_codes.USAGE_ERROR),
        (FileNotFoundError("no folder x"), exit_codes.USAGE_ERROR),
        (OSError(errno.ENOSPC, "the disk is full"), exit_codes.FAILED),
        (RuntimeError("a bug [/with] markup"), exit_codes.FAILED),
        (KeyboardInterrupt(), exit_codes.INTERRUPTED),
        (typer.Exit(exit_codes.SKIPPED_ITEMS), exit_codes.SKIPPED_ITEMS),
    ],
)
def test_every_end_has_its_exit_code(monkeypatch: pytest.MonkeyPatch, error: BaseException | None, code: int) -> None:
    assert run(monkeypatch, error) == code


def test_errors_are_one_line_and_debug_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, ValueError("bad [value]"))
    plain = capsys.readouterr().err
    assert plain.strip() == "error: bad [value]"
    run(monkeypatch, ValueError("bad [value]"), "--debug")
    assert "Traceback" in capsys.readouterr().err


def test_a_mistyped_option_is_wrong_use(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, None, "--nonsense") == exit_codes.USAGE_ERROR


def test_errors_send_no_escape_codes(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    run(monkeypatch, ValueError("no video \x1b]0;owned\x07"))
    text = capfd.readouterr().err
    assert r"\x1b]0;owned\x07" in text and "\x1b]" not in text
