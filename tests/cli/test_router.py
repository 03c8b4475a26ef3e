"""`pdctl router`: what it makes of its options; serving is tested in tests/router."""

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.exits import ExitCode
from pdctl.router import serve
from pdctl.router.settings import RouterSettings
from tests.cli.helpers import CliResult, run_cli

PAIR = ("--prefill", "http://p:1/", "--decode", "http://d:2")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the router was told, in place of a router that serves."""
    found: dict[str, Any] = {}

    async def run(settings: RouterSettings, **more: Any) -> None:
        found.update(more, settings=settings)

    monkeypatch.setattr(serve, "run", run)
    return found


def router(*options: str) -> CliResult:
    return run_cli("router", *PAIR, *options)


def test_options_become_settings(told: dict[str, Any]) -> None:
    options = ("--ttl", "7m", "--threshold", "9", "--reuse-share", "0.5", "--limit", "idle=3")
    assert router(*options).exit_code == ExitCode.OK
    settings = told["settings"]
    assert (settings.prefill, settings.decode) == (("http://p:1",), ("http://d:2",))
    assert (settings.ttl, settings.threshold, settings.reuse_share) == (420.0, 9, 0.5)
    assert settings.limits.idle == 3.0
    assert (settings.store, settings.deployment) == ("memory", "default")
    assert router("--store", "valkey://:pw@h/1", "--deployment", "prod").exit_code == ExitCode.OK
    settings = told["settings"]
    assert (settings.store, settings.deployment) == ("valkey://:pw@h/1", "prod")
    assert "pw" not in repr(settings)


def test_keys_come_from_files(told: dict[str, Any], tmp_path: Path) -> None:
    engine, clients = tmp_path / "engine", tmp_path / "clients"
    engine.write_text("sk-engine \nsk-old\n")
    clients.write_text("# ours\nteam: sk-a\n")
    assert router("--engine-key-file", str(engine), "--api-keys", str(clients)).exit_code == 0
    assert told["key"] == "sk-engine"
    assert told["key_file"].keys.tenant_of("Bearer sk-a") == "team"


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--ttl", "1:30"), ExitCode.USAGE, "--ttl: `1:30` is not a duration"),
        (("--limit", "idle"), ExitCode.USAGE, "`idle` is not a limit"),
        (("--limit", "idle=soon"), ExitCode.USAGE, "idle: "),
        (("--store", "disk"), ExitCode.USAGE, "this is not the URL of a store"),
        (("--store", "redis://:pw@h/x"), ExitCode.USAGE, "expected: memory or redis://"),
        (("--decode", "d:2"), ExitCode.USAGE, "`d:2` is not a URL of an engine"),
        (("--decode", "http://d:2/"), ExitCode.USAGE, "an engine is named twice"),
        (("--decode", "http://p:1"), ExitCode.USAGE, "an engine is named twice"),
        (("--decode", "http://d:99999"), ExitCode.USAGE, "is not a URL of an engine"),
        (("--decode", "http://d:abc"), ExitCode.USAGE, "is not a URL of an engine"),
        (("--decode", "http://[::1"), ExitCode.USAGE, "is not a URL of an engine"),
        (("--decode", "http://d e:1"), ExitCode.USAGE, "is not a URL of an engine"),
        (("--port", "99999"), ExitCode.USAGE, "--port"),
        (("--threshold", "-1"), ExitCode.USAGE, "--threshold"),
        (("--limit", "body_mib=inf"), ExitCode.USAGE, "body_mib: "),
        (("--api-keys", "/nowhere"), ExitCode.NOT_FOUND, "cannot read the API keys"),
        (("--api-keys", "/dev/null"), ExitCode.USAGE, "no API key in the file"),
        (("--host", "0.0.0.0"), ExitCode.USAGE, "`0.0.0.0` is reachable from elsewhere"),
        (("--host", "::"), ExitCode.USAGE, "`::` is reachable from elsewhere"),
        (("--tenant-salt",), ExitCode.USAGE, "there are no tenants to keep apart"),
        (("--engine-key-file", "/dev/null"), ExitCode.NOT_FOUND, "a file of keys is empty"),
    ],
)
def test_what_makes_no_sense_is_refused(
    told: dict[str, Any], options: tuple[str, ...], code: ExitCode, said: str
) -> None:
    result = router(*options)
    assert (result.exit_code, told) == (code, {})
    assert said in result.stderr


def test_off_loopback_it_wants_keys_or_a_word(told: dict[str, Any], tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("team:sk-a\n")
    for options in (
        ("--host", "0.0.0.0", "--api-keys", str(keys), "--tenant-salt"),
        ("--host", "0.0.0.0", "--allow-unauthenticated"),
        ("--host", "::1"),
        ("--host", "localhost"),
    ):
        told.clear()
        assert router(*options).exit_code == ExitCode.OK
        assert told["settings"].tenant_salt is ("--tenant-salt" in options)


def test_where_it_cannot_listen_is_said() -> None:
    before = signal.getsignal(signal.SIGINT)
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        result = router("--port", str(port))
    assert result.exit_code == ExitCode.TRY_AGAIN
    assert "the router cannot listen: Address already in use" in result.stderr
    assert f"127.0.0.1:{port}" in result.stderr
    result = router("--host", "nonsense.invalid", "--allow-unauthenticated")
    assert result.exit_code == ExitCode.TRY_AGAIN
    assert "Traceback" not in result.stderr
    assert signal.getsignal(signal.SIGINT) == before


def test_a_request_log_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    result = router("--port", "0", "--request-log", str(tmp_path))
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "the request log cannot be opened: Is a directory" in result.stderr
