"""Whatever goes wrong, the exit code says of what kind it was."""

import json
import os
import subprocess
import sys

import pytest

from pdctl.base.exits import ExitCode
from pdctl.cli import ui
from tests.cli.helpers import run_cli


def test_what_nobody_foresaw_is_a_bug_and_no_bad_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(value: object) -> None:
        raise ZeroDivisionError("nobody thought of it")

    monkeypatch.setattr(ui, "data", fails)
    result = run_cli("version")
    assert result.exit_code == ExitCode.BUG
    assert "this is a bug in pdctl: ZeroDivisionError: nobody thought of it" in result.stderr
    assert "in fails" in result.stderr
    assert "hint: report it" in result.stderr


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        (">/dev/full", 1, "the output cannot be written: No space left on device"),
    ],
)
def test_an_output_that_cannot_be_written_is_no_bug(redirected: str, code: int, said: str) -> None:
    command = f"{sys.executable} -m pdctl version {redirected}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert said in done.stderr


def test_letters_that_the_terminal_lacks_are_no_bug() -> None:
    code = (
        "from pdctl.cli import app, ui; app.app.command('x')(lambda: ui.data('a → b')); "
        "raise SystemExit(app.run(['x']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "a ? b\n"), done.stderr


def test_a_bug_is_told_in_json_as_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("platform.platform", fails)
    result = run_cli("version", "--json")
    assert result.exit_code == ExitCode.BUG
    assert json.loads(result.stdout)["exit_code"] == 70
