"""`pdctl verify` as a person and as a script see it, against a fake pair behind real sockets."""

import re
from pathlib import Path

import pytest

from pdctl.engine.example import LIMITS
from tests.cli.conftest import Serve
from tests.cli.helpers import run_cli
from tests.observe.fakes import FakeEngine


def normal(text: str) -> str:
    """Times and URLs differ from run to run."""
    text = re.sub(r"\d[\d,]* ms", "N ms", text)
    return re.sub(r"http://127\.0\.0\.1:\d+", "URL", text)


def test_a_proof_in_words(serve: Serve) -> None:
    _, file = serve()
    result = run_cli("verify", "--file", str(file), "--history", "200")
    assert result.exit_code == 0, result.stderr
    told = [re.sub(r" {2,}", "  ", line).rstrip() for line in normal(result.stdout).splitlines()]
    assert told == [
        "turn  TTFT  prompt tokens  reused  router says",
        "1  N ms  200  0  MISS",
        "2  N ms  336  271  HIT",
        "2, cold  N ms  336  0  -",
        "2 of a chat  N ms  1  0  MISS",
        "",
        "proven: turn 2 reuses what decode kept of turn 1",
        "  + turn 2 reused 271 of 336 prompt tokens, as prefill itself counted "
        "(`remote_prefill_cached_tokens`)",
        "  + `prefill-0` pulled the KV of 271 tokens (271.0 kB) from decode while that turn ran "
        "(`vllm:nixl_bytes_transferred`)",
        "  + the 32 tokens of the answer are those of a cold run on decode alone",
        "  + turn 1 generated 72 tokens, which only decode had (threshold 64, block 16): that "
        "holds with prefill's own prefix cache on or off; here it is on",
        "  - the first token of turn 2 came after N ms, cold after N ms (one measurement each)",
    ]
    assert result.stderr.splitlines() == [
        "… turn 1: 200 tokens of random words, 72 generated",
        "… turn 2: the same conversation, 336 tokens",
        "… turn 2 again, cold, through the router",
        "… turn 2 again, cold, on decode alone",
        "… an ordinary chat of two turns, for comparison",
    ]


def test_a_proof_as_json_and_nothing_else_on_stdout(serve: Serve) -> None:
    _, file = serve()
    result = run_cli("verify", "--file", str(file), "--json", "--no-chat")
    assert result.exit_code == 0
    told = result.json
    assert told["ok"] is True
    assert told["output_equal"] is True
    assert told["bytes_pulled"] > 0
    assert [turn["turn"] for turn in told["turns"]] == [1, 2]
    assert set(told["turns"][0]) >= {"turn", "ttft_ms", "prompt_tokens", "reused_tokens"}
    assert told["turns"][1]["reused_tokens"] > 0
    assert told["chat"] is None
    assert told["checks"] == []


def test_what_the_example_proxy_cannot_do_is_said_with_the_proof(serve: Serve) -> None:
    _, file = serve(ours=False, example=True)
    result = run_cli("verify", "--file", str(file), "--no-chat")
    assert result.exit_code == 0
    lines = [line.strip(" !") for line in result.stdout.splitlines()]
    assert "the router is upstream's example proxy, for comparison only:" in lines
    assert set(LIMITS) <= set(lines)


def test_one_side_off_says_which_and_exits_1(serve: Serve) -> None:
    canary = "decode returned no handle"
    _, file = serve(decode=FakeEngine("decode", bidirectional=False), canary=canary)
    result = run_cli("verify", "--file", str(file), "--wait", "0")
    assert result.exit_code == 1
    told = normal(result.stdout)
    assert (
        "not proven: turn 2 reused nothing: decode returns no handle, so it runs with "
        "`bidirectional_kv_xfer` off; its probe of URL → URL found: decode returned no handle"
    ) in told
    assert "router.pair fake: URL → URL: decode returned no handle" in told
    assert 'hint: start decode with `"bidirectional_kv_xfer": true`' in result.stderr

    told = run_cli("verify", "--file", str(file), "--json", "--wait", "0").json
    assert (told["ok"], told["side"]) == (False, "decode")
    assert [check["id"] for check in told["checks"]] == ["router.pair", "runtime.two_turn"]


def test_a_dead_engine_exits_69_and_is_named(serve: Serve) -> None:
    _, file = serve(prefill=FakeEngine("prefill", alive=False))
    result = run_cli("verify", "--file", str(file), "--json")
    assert result.exit_code == 69
    assert result.json["error"] == "`prefill-0` does not answer"
    assert "error: `prefill-0` does not answer" in result.stderr


def test_nothing_started_exits_69_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    file = tmp_path / "pd.yaml"
    file.write_text(
        "name: none\nmodel: {id: pdctl/tiny-random}\nengine: {install: cpu}\n"
        "target: {kind: local, prefill: {port: 0}, decode: {port: 0}}\n"
    )
    result = run_cli("verify", "--file", str(file))
    assert result.exit_code == 69
    assert "`prefill-0` has no port yet: it was never started" in result.stderr
    assert "hint: pdctl up" in result.stderr


def test_no_file_exits_66(tmp_path: Path) -> None:
    assert run_cli("verify", "--file", str(tmp_path / "none.yaml")).exit_code == 66
