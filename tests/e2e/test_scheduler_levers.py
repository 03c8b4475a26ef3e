"""The plugin on vLLM's own scheduler and workers (FACTS T11, T12, L10). Starts no engine.

A pair on CPUs has one worker and no overlapping batches, and nothing preempts there: this is all
there is without GPUs.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from pdctl.engine.plugin_bundle import write_bundle
from tests.e2e.test_host_real import engine_python

SCRIPT = Path(__file__).with_name("scheduler_cases.py")
MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 512,
    "max_position_embeddings": 4096,
}


def test_prefill_pulls_safely_and_never_waits_for_nothing(tmp_path: Path) -> None:
    python = engine_python()
    if not os.path.exists(python):
        pytest.skip(f"no engine is installed: there is no {python}")
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    bundle = write_bundle(tmp_path / "plugins")
    mine = ("PDCTL_", "PYTHON")
    env = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    done = subprocess.run(
        [python, "-P", str(SCRIPT), str(tmp_path), str(bundle)],
        env={**env, "TMPDIR": str(tmp_path), "PDCTL_LEASE_RENEWAL": "on"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["plugin"] == {"prefill": 0, "decode": 0, "preempted": "RUNNING"}
    assert found["renewed"] == [True, False], "kept until then, by all eight workers"
    # The traps are still there. When they are not, the levers can go.
    assert found["stock"] == {"prefill": 32, "decode": 0, "preempted": "WAITING_FOR_REMOTE_KVS"}
