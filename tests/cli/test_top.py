"""`pdctl top` as a script and a person see it, against a fake pair."""

from typing import Any

import pytest

from pdctl.cli import top as command
from tests.cli.conftest import Serve
from tests.cli.helpers import run_cli
from tests.observe.fakes import FakeEngine


def test_once_as_json(serve: Serve) -> None:
    pair, file = serve()
    pair.decode.usage = 0.5
    result = run_cli("top", "-f", str(file), "--once", "--json")
    assert result.exit_code == 0, result.stderr
    told = result.json
    assert told["name"] == "fake"
    assert told["window_s"] is None
    engines = {each["name"]: each for each in told["engines"]}
    assert engines["decode-0"]["used"] == 0.5 * 512 * 16
    assert engines["prefill-0"]["healthy"] is True
    assert told["room_tokens"] == 512 * 16
    assert told["pulled_bytes"] == 0
    assert told["alerts"] == []
    assert (told["turns"], told["ttft_ms"], told["hit_share"]) == ({}, {}, None)


def test_once_in_words_with_an_alert_and_a_bad_end(serve: Serve) -> None:
    pair, file = serve(canary="decode returned no handle")
    shown = run_cli("top", "-f", str(file), "--once")
    assert "router.pair" in shown.stdout
    assert "decode returned no handle" in shown.stdout
    assert shown.exit_code == 0
    pair.decode.alive = False
    shown = run_cli("top", "-f", str(file), "--once")
    assert shown.exit_code == 1
    assert "x no answer from" in shown.stdout


def test_it_goes_on_until_ctrl_c(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, file = serve(decode=FakeEngine("decode"))
    looks: list[Any] = []
    drawn = command._drawn

    def until_the_third(seen: Any, alerts: Any) -> Any:
        looks.append(seen)
        pair.prefill.pulled = 1000 * len(looks)
        if len(looks) == 3:
            raise KeyboardInterrupt
        return drawn(seen, alerts)

    monkeypatch.setattr(command, "_drawn", until_the_third)
    result = run_cli("top", "-f", str(file), "--every", "0.2")
    assert result.exit_code == 130
    assert [each.pulled_bytes for each in looks] == [0, 1000, 2000]
    assert looks[0].window_s is None
    assert looks[2].window_s > looks[1].window_s > 0
    assert "turns in 0 s: none" in result.stdout


def test_json_needs_once(serve: Serve) -> None:
    _, file = serve()
    result = run_cli("top", "-f", str(file), "--json")
    assert result.exit_code == 2
    assert "`--json` goes with `--once`" in result.stderr
