"""`pdctl accept` against a fake pair: what it tries, what it keeps, and how it ends."""

import importlib
import json
import tarfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pdctl.accept import steps
from pdctl.accept.kept import folder
from pdctl.config.load import loads
from pdctl.observe.verify import VerifyOptions, verify
from pdctl.state.cloud import Cloud, CloudStore
from tests.cli.conftest import Serve
from tests.cli.helpers import CliResult, run_cli

# The app's module has the command of that name in the module's place.
cli_accept = importlib.import_module("pdctl.cli.accept")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs are proven through the pair's own router; the fake engines are too few for another."""

    async def prove(config: Any, endpoints: Any, *_: Any, **__: Any) -> Any:
        return await verify(endpoints, VerifyOptions(chat=False, ready_s=0.0, history_tokens=200))

    monkeypatch.setattr(steps, "prove_pair", prove)


def accept(file: Path, out: Path, *more: str) -> CliResult:
    return run_cli("accept", "-f", str(file), "--out", str(out), *more)


def unpacked(bundle: Path) -> dict[str, str]:
    with tarfile.open(bundle) as archive:
        members = archive.getmembers()
        assert {m.mode for m in members} == {0o600}
        files = {m.name.partition("/")[2]: archive.extractfile(m) for m in members}
        return {name: held.read().decode() for name, held in files.items() if held}


def test_everything_is_tried_once_and_kept(serve: Serve, tmp_path: Path) -> None:
    _, file = serve()
    file.write_text(file.read_text() + "engine: {plugin: 'off'}\n# HF_TOKEN=hf_abcdefgh12345\n")
    out = tmp_path / "b.tar.gz"
    result = accept(file, out, "--json")
    assert result.exit_code == 0, result.stderr
    told = result.json
    assert {each["id"]: each["status"] for each in told["results"]} == {
        "doctor": "pass",
        "pair.prefill-0.decode-0": "pass",
        "exact": "pass",
        "async_scheduling": "skip",
        "speculative": "skip",
        "fp8_kv": "skip",
        "bench": "pass",
        "restart.prefill": "skip",
        "restart.decode": "skip",
        "efa": "skip",
    }
    assert told["summary"] == {"pass": 4, "fail": 0, "skip": 6}
    kept = unpacked(out)
    assert json.loads(kept["accept.json"]) == {k: v for k, v in told.items() if k != "bundle"}
    assert {"config.yaml", "bench/run.json", "bench/turns.ndjson"} <= set(kept)
    assert "hf_abcdefgh12345" not in "".join(kept.values())
    assert out.stat().st_mode & 0o777 == 0o600
    (copy,) = folder().iterdir()
    assert (copy.name, copy.read_bytes()) == (out.name, out.read_bytes())
    assert copy.stat().st_mode & 0o777 == 0o600
    assert told["environment"]["model"]["dtype"] == "float32"


def test_a_failure_is_told_and_the_rest_is_still_tried(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file = serve()

    async def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("no")

    monkeypatch.setattr(steps, "compare_turns", broken)
    result = accept(file, tmp_path / "b.tar.gz", "--skip", "bench")
    assert result.exit_code == 1
    assert "this is a bug in pdctl: ZeroDivisionError: no" in result.stdout
    assert "2 passed, 1 failed, 7 were left out" in result.stdout
    assert not folder().exists()


def test_what_the_budget_does_not_allow_is_left_out_and_that_is_no_success(
    serve: Serve, tmp_path: Path
) -> None:
    _, file = serve()
    result = accept(file, tmp_path / "b.tar.gz", "--usd", "0.01", "--hourly-usd", "36", "--json")
    assert result.exit_code == 1
    over = [each["id"] for each in result.json["results"] if each["over_budget"]]
    assert over == ["pair.prefill-0.decode-0", "exact", "bench"]
    assert result.json["budget"]["seconds"] == 1.0


def test_ctrl_c_keeps_what_was_seen(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, file = serve()

    async def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "compare_turns", stop)
    out = tmp_path / "b.tar.gz"
    result = accept(file, out)
    assert result.exit_code == 130
    kept = json.loads(unpacked(out)["accept.json"])
    assert [each["id"] for each in kept["results"]] == ["doctor", "pair.prefill-0.decode-0"]
    assert kept["ok"] is False
    assert not folder().exists()


def test_a_dry_run_only_says_what_would_be_tried(serve: Serve, tmp_path: Path) -> None:
    pair, file = serve()
    out = tmp_path / "b.tar.gz"
    result = accept(file, out, "--dry-run", "--json")
    assert result.exit_code == 0
    assert [each["id"] for each in result.json if not each["skip"]] == [
        *("doctor", "pair.prefill-0.decode-0", "exact", "bench", "efa"),
    ]
    assert not out.exists()
    assert pair.router.turns == []


def test_what_cannot_be_asked(serve: Serve, tmp_path: Path) -> None:
    _, file = serve()
    result = accept(file, tmp_path / "b.tar.gz", "--usd", "5")
    assert result.exit_code == 2
    assert "`--hourly-usd` beside it" in result.stderr
    result = accept(file, tmp_path / "b.tar.gz", "--skip", "everything")
    assert result.exit_code == 2
    assert "`everything` is no step" in result.stderr


def test_the_price_of_hosts_that_pdctl_made_is_known(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path))
    document = b"name: pair\nmodel: {id: m}\ntarget: {kind: ec2, region: us-west-2}\n"
    config = loads(document, file="pd.yaml", base=tmp_path).config
    assert cli_accept._price(config, None) is None
    cloud = mock.create_autospec(Cloud, instance=True)
    cloud.hourly_usd = 126.5
    monkeypatch.setattr(CloudStore, "load", lambda _: cloud)
    assert cli_accept._price(config, None) == 126.5
    assert cli_accept._price(config, 99.0) == 99.0
