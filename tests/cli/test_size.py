import json
from pathlib import Path

from pdctl.base.exits import ExitCode
from tests.cli.helpers import run_cli

ASK = ["size", "--sessions", "400", "--turn-gap", "1m", "--context", "8000"]


def test_a_plan_in_json() -> None:
    told = run_cli(*ASK, "--json").json
    assert told["model"] == "Qwen/Qwen3-32B"
    assert told["turn_gap_s"] == 60
    assert told["prefill"]["hosts"] >= 1
    assert told["decode"]["hosts"] >= 1
    assert told["routers"] == 2
    assert told["store"]["mib"] > 0
    assert told["cost"]["as_of"] == "2026-07-20"
    assert told["simulated"]["sessions"] == 400
    assert len(told["assumptions"]) >= 8


def test_a_plan_in_words() -> None:
    text = run_cli(*ASK, "--simulate", "0").stdout
    assert "prefill hosts" in text
    assert "/h" in text
    assert "no reuse" in text
    assert "assumed:" in text
    assert "simulated" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_a_config_of_ones_own(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 256}
    (tmp_path / "config.json").write_text(json.dumps(config))
    unknown = run_cli(*ASK, "--model", str(tmp_path), "--tensor-parallel", "1")
    assert unknown.exit_code == ExitCode.USAGE
    assert "--weights-gb" in unknown.stderr
    known = run_cli(
        *ASK, "--model", str(tmp_path), "--tensor-parallel", "1", "--weights-gb", "1", "--json"
    )
    assert known.json["decode"]["engine_tokens"] > 1_000_000
    (tmp_path / "model.safetensors").write_bytes(b"x" * 100)
    beside = run_cli(*ASK, "--model", str(tmp_path), "--tensor-parallel", "1", "--json")
    assert beside.exit_code == ExitCode.OK
    (tmp_path / "config.json").write_text("{}")
    refused = run_cli(*ASK, "--model", str(tmp_path), "--weights-gb", "1")
    assert refused.exit_code == ExitCode.USAGE
    assert "num_hidden_layers" in refused.stderr


def test_what_makes_no_sense() -> None:
    assert run_cli(*ASK, "--host", "t3.micro").exit_code == ExitCode.USAGE
    assert run_cli(*ASK, "--model", "nobody/none").exit_code == ExitCode.NOT_FOUND
    assert run_cli(*ASK[:3], "--turn-gap", "0", "--context", "10").exit_code == ExitCode.USAGE
    small = run_cli(*ASK, "--model", "zai-org/GLM-5-FP8", "--host", "p5.48xlarge")
    assert small.exit_code == ExitCode.USAGE
    assert "hint: try a larger" in small.stderr
