"""Asking an installed engine what it is, and comparing that with what the configuration needs.

result = host.run(probe_command(python), timeout=60, stdin=probe_script())
facts = parse_probe(result.stdout)
wrong = disagreements(config, facts)
"""

import json
from collections.abc import Iterator
from importlib import resources

from pdctl.base.command import Command, command
from pdctl.base.errors import BadAnswerError
from pdctl.base.facts import EngineFacts, from_json
from pdctl.config.model import Config
from pdctl.engine import choices
from pdctl.engine.kvconfig import kv_transfer_config

_SCHEMA = 1


def probe_script() -> bytes:
    """The script, for the standard input of `probe_command`."""
    return (resources.files("pdctl.engine.scripts") / "probe.py").read_bytes()


def probe_command(python: str) -> Command:
    """Runs the script with an engine's own interpreter; it reads files and imports no engine."""
    return command(python, "-I", "-")


def parse_probe(text: str) -> EngineFacts:
    """The facts in what the script printed; lines that others printed are passed over.

    Raises:
        BadAnswerError: there is no such answer in the text.
    """
    for line in reversed(text.splitlines()):
        answer = _object(line)
        if answer is not None and answer.pop("schema_version", None) == _SCHEMA:
            return from_json(EngineFacts, answer)
    raise BadAnswerError(
        "the engine's Python did not answer the probe",
        expected="a Python from 3.10 on that prints one line of JSON",
        detail=text.splitlines()[-5:],
    )


def _object(line: str) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def disagreements(config: Config, facts: EngineFacts) -> list[str]:
    """Why the installed engine cannot run this configuration, as sentences; empty when it can.

    Args:
        config: a configuration without problems.
        facts: of the interpreter that is to run it.
    """
    if facts.vllm is None:
        return [f"there is no vLLM in this Python ({'; '.join(facts.problems) or 'not found'})"]
    return [
        *_versions(config, facts),
        *_keys(config, facts),
        *_device(config, facts),
        *_behaviour(config, facts),
    ]


def _versions(config: Config, facts: EngineFacts) -> Iterator[str]:
    wanted = choices.vllm_version(config)
    if facts.vllm is not None and _public(facts.vllm) != _public(wanted):
        yield (
            f"vLLM {facts.vllm} is installed, the configuration is for {wanted}: "
            f'write `engine.vllm: "{_public(facts.vllm)}"`'
        )
    if facts.nixl is None:
        yield "NIXL is not installed in the engine's Python"
    else:
        yield from _nixl(config, facts.nixl)
    builds = {version for version in facts.nixl_builds.values() if version != facts.nixl}
    if builds:
        names = ", ".join(f"{name} {number}" for name, number in facts.nixl_builds.items())
        yield f"NIXL {facts.nixl} is installed with builds of other versions: {names}"


def _nixl(config: Config, installed: str) -> Iterator[str]:
    wanted = config.engine.nixl
    if wanted is not None and _public(installed) != _public(wanted):
        yield (
            f"NIXL {installed} is installed, the configuration is for {wanted}: "
            f'write `engine.nixl: "{_public(installed)}"`'
        )
        return
    for backend in choices.backends(config):
        reason = choices.traits_of(config).nixl.value[backend].why_not(installed)
        if reason:
            yield f"NIXL {installed} is installed and does not go with {backend}: {reason}"


def _public(version: str) -> str:
    """Without the local part: `0.33.0+cu130` is a build of 0.33.0."""
    return version.partition("+")[0]


def _keys(config: Config, facts: EngineFacts) -> Iterator[str]:
    if facts.kv_keys:
        asked = kv_transfer_config(config, "prefill", None)["kv_connector_extra_config"]
        for key in sorted(asked.keys() - set(facts.kv_keys)):
            yield f"this vLLM does not read `{key}`, so its value would have no effect"
    if facts.top_level:
        given = kv_transfer_config(config, "prefill", "any").keys()
        for key in sorted(given - set(facts.top_level)):
            yield f"this vLLM refuses `{key}` in `--kv-transfer-config`"


def _device(config: Config, facts: EngineFacts) -> Iterator[str]:
    wanted = choices.buffer_device(config)
    if facts.device is None:
        return
    if wanted is None and facts.device == "cpu":
        yield "this vLLM computes on the CPU: write `kv.buffer_device: cpu`"
    elif wanted is not None and (facts.device == "cpu") != (wanted == "cpu"):
        yield (
            f"this vLLM computes on {facts.device}, the configuration says "
            f"`kv.buffer_device: {wanted}`"
        )


def _behaviour(config: Config, facts: EngineFacts) -> Iterator[str]:
    if facts.expiry_decline is False and config.kv.bidirectional:
        yield "this vLLM does not decline a read that comes too late, and answers with garbage"
