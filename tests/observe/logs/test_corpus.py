"""Logs of a real pair, and exactly what must be found in them.

tests/data/logs holds the recorded logs without their routine lines: vLLM 0.32.0 (CPU) with NIXL
1.5.1 and vLLM's example proxy, TTL 12 s; three conversations of four turns, turns after the TTL, a
turn without a conversation id, a restart of decode. `PDCTL_CORPUS` names a folder of the whole.
"""

import os
from pathlib import Path

import pytest

from pdctl.observe.logs.read import events, source_of
from pdctl.observe.logs.report import read_all
from pdctl.observe.logs.summary import Summary
from tests.observe.logs.helpers import SCANNER

SAMPLE = Path(__file__).parents[2] / "data" / "logs"
COUNTS = {
    "engine.load": 8,
    "engine.request.error": 3,
    "http.error": 6,
    "kv.bidirectional.enabled": 3,
    "kv.lease.expired": 5,
    "kv.load.failed": 3,
    "kv.processing.skipped": 3,
    "kv.read.declined": 3,
    "kv.transfer.metrics": 6,
    "nixl.backend.up": 3,
    "nixl.compat.passed": 4,
    "nixl.peer.replaced": 1,
    "process.started": 4,
    "process.stopping": 3,
    "router.cache.hit": 24,
    "router.cache.lost": 3,
    "router.cache.miss": 8,
    "router.conversation.unnamed": 2,
    "router.handle.kept": 27,
    "router.handle.sent": 24,
    "router.prefill.done": 29,
    "router.started": 1,
    "router.upstream.error": 3,
}
"""`router.upstream.error`: the three tracebacks with an HTTP 500 behind them."""
BY_FILE = {
    "prefill.log": {"kv.read.declined": 3, "kv.load.failed": 3},
    "decode.log": {"kv.lease.expired": 4},
    "decode-restarted.log": {"kv.lease.expired": 1},
    "proxy.log": {"router.cache.hit": 24, "router.cache.miss": 8, "router.upstream.error": 3},
}


def read(folder: Path, *names: str) -> Summary:
    return read_all([source_of(str(folder / name)) for name in names])


def judge(folder: Path) -> None:
    whole = read(folder, *BY_FILE)
    assert dict(whole.signatures) == COUNTS
    assert (whole.hit, whole.miss, whole.miss_rate) == (24, 8, 0.25)
    assert whole.kinds == {"first_turn": 3, "unnamed": 2, "lost": 3}
    assert whole.findings["router.cache.lost"].whys == {"spent": 3}
    assert whole.worst()[0].signature.id == "kv.read.declined"
    for name, counts in BY_FILE.items():
        alone = read(folder, name).signatures
        assert {id: alone[id] for id in counts} == counts, name


def test_the_sample() -> None:
    judge(SAMPLE)


@pytest.mark.skipif(
    not os.environ.get("PDCTL_CORPUS"), reason="PDCTL_CORPUS names no folder of recorded logs"
)
def test_the_whole() -> None:
    judge(Path(os.environ["PDCTL_CORPUS"]))


@pytest.mark.parametrize(("name", "role"), [
    ("proxy.log", "router"), ("decode.log", "decode"), ("prefill.log", "prefill"),
])  # fmt: skip
def test_roles_are_known_by_name_or_by_what_is_written(
    name: str, role: str, tmp_path: Path
) -> None:
    unnamed = tmp_path / "x.log"
    unnamed.write_bytes((SAMPLE / name).read_bytes())
    for path in (SAMPLE / name, unnamed):
        assert {event.role for event in events([source_of(str(path))], SCANNER)} == {role}


def test_of_mixed_logs_lines_tell_their_role_where_only_one_writes_them(tmp_path: Path) -> None:
    mixed = tmp_path / "x.log"
    mixed.write_bytes(b"".join((SAMPLE / name).read_bytes() for name in BY_FILE))
    found = list(events([source_of(str(mixed))], SCANNER))
    roles = {event.id: event.role for event in found}
    assert (roles["kv.read.declined"], roles["router.cache.miss"]) == ("prefill", "router")
    assert roles["kv.lease.expired"] is None
