"""A host's whole answer to facts. Pure, and never raises whatever the answer is."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pdctl.base.hostfacts import HostFacts, HostWant
from pdctl.observe.host.clock import offset_of, read_clock
from pdctl.observe.host.efa import read_efa
from pdctl.observe.host.fabric import read_fabric
from pdctl.observe.host.gpu import read_nvidia
from pdctl.observe.host.memory import read_disks, read_memory
from pdctl.observe.host.network import read_peers, read_ports
from pdctl.observe.host.nixl import read_nixl
from pdctl.observe.host.raw import mapping, seconds, text
from pdctl.observe.host.system import read_limits, read_system

SCHEMA = 1


def objects(printed: str) -> list[dict[str, Any]]:
    """The script's lines; what others printed, such as a login banner, is passed over."""
    found = []
    for line in printed.splitlines():
        if line.startswith("{"):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) and value.get("schema_version") == SCHEMA:
                found.append(value)
    return found


def parts_of(printed: str) -> dict[str, Any] | None:
    """What each part gave; None when the script did not come to an end."""
    for value in reversed(objects(printed)):
        if isinstance(value.get("parts"), dict):
            return mapping(value["parts"])
    return None


def clock_of(printed: str, sent: float, received: float) -> tuple[float, float] | None:
    """Offset and error bar from the script's first line, which was here at `received`."""
    for value in objects(printed):
        theirs = seconds(value.get("now"))
        if theirs is not None:
            return offset_of(theirs, sent, received)
    return None


def facts_of(
    name: str, want: HostWant, parts: dict[str, Any], clock: tuple[float, float] | None
) -> HostFacts:
    """All facts; a part that is missing or failed is None, with the reason in `problems`."""
    problems: dict[str, str] = {}

    def part(key: str) -> Any:
        answer = mapping(parts.get(key))
        if "ok" in answer:
            return answer["ok"]
        problems[key] = text(answer.get("error")) or "the host did not say"
        return None

    def made(key: str, reader: Callable[[Any], Any]) -> Any:
        value = part(key)
        return None if value is None else reader(value)

    caps = part("efa_caps")
    offset, error_bar = clock or (None, None)
    facts = HostFacts(
        name,
        want=want,
        system=made("system", read_system),
        fabric=made("fabric", read_fabric),
        efa=made("efa", lambda value: read_efa(value, caps)),
        nvidia=made("nvidia", read_nvidia),
        limits=made("limits", read_limits),
        memory=made("memory", read_memory),
        disks=made("disks", read_disks),
        clock=made("clock", lambda value: read_clock(value, offset, error_bar)),
        ports=made("ports", lambda value: read_ports(value, want.ports)),
        peers=made("peers", lambda value: read_peers(value, want.peers)),
        nixl=made("nixl", lambda value: read_nixl(value, want.backends)),
    )
    return replace(facts, problems=problems)
