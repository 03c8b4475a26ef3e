"""Whatever goes wrong, the exit code says of what kind it was."""

import json

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


def test_a_bug_is_told_in_json_as_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("platform.platform", fails)
    result = run_cli("version", "--json")
    assert result.exit_code == ExitCode.BUG
    assert json.loads(result.stdout)["exit_code"] == 70
