"""`pdctl render`, as a person or a script sees it."""

import json
import os
from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode
from tests.cli.helpers import run_cli

TEXT = """\
name: pair
model: {id: pdctl/tiny-random, dtype: float32}
engine: {install: cpu}
target: {kind: local}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("PDCTL_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "pd.yaml"
    path.write_text(TEXT)
    return str(path)


def test_shell_is_the_default_and_names_each_script(file: str) -> None:
    result = run_cli("render", "-f", file)
    assert result.exit_code == ExitCode.OK
    heads = [line for line in result.stdout.splitlines() if line.startswith("# ==>")]
    assert heads == ["# ==> prefill-0.sh <==", "# ==> decode-0.sh <==", "# ==> router-0.sh <=="]
    assert "<new at every start>" not in result.stdout
    assert "community build" in result.stderr


def test_one_role_is_one_script_fit_for_a_pipe(file: str) -> None:
    result = run_cli("render", "-f", file, "--role", "router")
    assert result.stdout.startswith("#!/bin/sh\n# router-0 of pair")
    assert " -m pdctl router \\\n" in result.stdout


def test_json(file: str) -> None:
    by_format = run_cli("render", "-f", file, "--format", "json")
    assert by_format.exit_code == ExitCode.OK
    assert run_cli("render", "-f", file, "--json").stdout == by_format.stdout
    assert [each["name"] for each in by_format.json["processes"]] == [
        "prefill-0",
        "decode-0",
        "router-0",
    ]
    assert "<new at every start>" in by_format.json["processes"][0]["argv"][-1]


def test_nothing_is_made_by_looking(file: str, tmp_path: Path) -> None:
    run_cli("render", "-f", file)
    assert {path.name for path in tmp_path.iterdir()} == {"pd.yaml"}


def test_the_same_every_time(file: str) -> None:
    for form in ("shell", "systemd", "json"):
        first = run_cli("render", "-f", file, "--format", form)
        assert first.stdout == run_cli("render", "-f", file, "--format", form).stdout


def test_out_writes_files_and_names_them(file: str, tmp_path: Path) -> None:
    out = tmp_path / "units"
    result = run_cli("render", "-f", file, "--format", "systemd", "--out", str(out))
    assert result.exit_code == ExitCode.OK
    written = [Path(line) for line in result.stdout.splitlines()]
    assert [path.name for path in written] == [
        f"pdctl-pair-{name}.{kind}"
        for name in ("prefill-0", "decode-0", "router-0")
        for kind in ("service", "env")
    ]
    assert sorted(written) == sorted(out.iterdir())
    assert [oct(path.stat().st_mode & 0o777) for path in written[:2]] == ["0o644", "0o600"]


def test_out_replaces_what_was_there(file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "pair.json").write_text("old")
    assert run_cli("render", "-f", file, "--json", "--out", str(out)).exit_code == ExitCode.OK
    assert json.loads((out / "pair.json").read_text())["name"] == "pair"
    assert [path.name for path in out.iterdir()] == ["pair.json"]


def test_out_that_is_a_file(file: str) -> None:
    result = run_cli("render", "-f", file, "--out", file)
    assert result.exit_code == ExitCode.NO_PERMISSION
    assert "cannot write" in result.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_out_without_permission(file: str, tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    result = run_cli("render", "-f", file, "--out", str(tmp_path / "closed" / "x"))
    assert result.exit_code == ExitCode.NO_PERMISSION


def test_invalid_configuration_shows_every_problem(file: str) -> None:
    Path(file).write_text(TEXT + "decode: {extra_args: [--dtype, float16]}\nrouter: {ttl: 480}\n")
    result = run_cli("render", "-f", file)
    assert result.exit_code == ExitCode.CONFIG
    assert result.stdout == ""
    assert "pd.yaml:5:23 decode.extra_args[0]: `--dtype` does not belong here" in result.stderr
    assert "pd.yaml:6:15 router.ttl: 8m is not safe" in result.stderr


def test_no_file(tmp_path: Path) -> None:
    result = run_cli("render", "-f", str(tmp_path / "missing.yaml"))
    assert result.exit_code == ExitCode.NOT_FOUND


def test_a_role_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "pd.yaml"
    path.write_text(
        "name: pair\nmodel: {id: m}\n"
        "target: {kind: external, prefill: ['http://p:1'], decode: ['http://d:1']}\n"
    )
    result = run_cli("render", "-f", str(path), "--role", "decode")
    assert result.exit_code == ExitCode.USAGE
    assert "there is no decode process" in result.stderr


def test_an_unknown_format_is_a_usage_error(file: str) -> None:
    assert run_cli("render", "-f", file, "--format", "toml").exit_code == ExitCode.USAGE


def test_monitoring_of_a_deployment_is_written_file_by_file(file: str, tmp_path: Path) -> None:
    out = tmp_path / "mon"
    for what in ("dashboard", "prometheus", "alerts"):
        result = run_cli("render", what, "-f", file, "--out", str(out))
        assert result.exit_code == ExitCode.OK, result.stderr
    assert {path.name for path in out.iterdir()} == {
        "pair-dashboard.json",
        "pair-prometheus.yml",
        "pair-alerts.yml",
    }
    assert json.loads((out / "pair-dashboard.json").read_text())["title"] == "pdctl: pair"
    scrape = run_cli("render", "prometheus", "-f", file, "--json").json
    assert scrape["rule_files"] == ["pair-alerts.yml"]
    servers = scrape["scrape_configs"][0]["static_configs"]
    assert [each["labels"]["process"] for each in servers] == [
        "prefill-0",
        "decode-0",
        "router-0",
    ]


def test_engines_that_something_else_runs_are_scraped_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "pd.yaml"
    path.write_text(
        "name: pair\nmodel: {id: m}\n"
        "target: {kind: external, prefill: ['http://p:1'], decode: ['http://d:1']}\n"
    )
    made = run_cli("render", "prometheus", "-f", str(path), "--json").json
    servers = made["scrape_configs"][0]["static_configs"]
    assert [each["targets"] for each in servers] == [["p:1"], ["d:1"], ["127.0.0.1:8000"]]


def test_an_address_that_nobody_knows_yet_is_not_made_up(file: str) -> None:
    Path(file).write_text(TEXT + "router: {port: 0}\n")
    result = run_cli("render", "prometheus", "-f", file)
    assert result.exit_code == ExitCode.USAGE
    assert "where `router-0` answers is not known before it is started" in result.stderr
    assert result.stdout == ""


def test_monitoring_has_no_roles_and_formats(file: str) -> None:
    result = run_cli("render", "alerts", "-f", file, "--role", "router")
    assert result.exit_code == ExitCode.USAGE
    assert "one form" in result.stderr
