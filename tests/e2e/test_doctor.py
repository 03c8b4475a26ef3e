"""`doctor` on real pairs: all green on a healthy one, and each trap named as the first failure.

The router runs in the test's own process, so it has no log; everything else is as `pdctl doctor`
finds it. The same on the command line is in test_cli_real and test_example_proxy.
"""

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import replace

import aiohttp
import psutil
import pytest

from pdctl.base.explain import REUSE_PATH
from pdctl.base.facts import PairFacts
from pdctl.deploy.case import case_of
from pdctl.doctor.checks import CHECKS
from pdctl.doctor.table import Finding, run_checks
from pdctl.observe.examine import ROUTER, Case, Look, examine_async
from pdctl.observe.turns import TurnLimits
from pdctl.render.check import load_checked
from pdctl.router import retention
from pdctl.targets.local import LocalHost
from tests.e2e.harness import Pair, Routed, Setup, random_ids, routed
from tests.e2e.test_pressure import SMALL
from tests.e2e.test_traps import FLAG_OFF, begin, follow

LOOK = Look(ready_s=10.0, turn_s=20.0)


class Doctor:
    """Looks at the pair as it is since the test began: others have used it before."""

    def __init__(self, pair: Pair) -> None:
        self._pair, self._began = pair, time.time()

    def case(self, router: Routed, *, nixl: bool) -> Case:
        """The pair as it was started, with the router that runs in this process.

        Args:
            nixl: also try whether NIXL's backend loads, which takes the engine's Python seconds.
        """
        with self._pair.environment():
            found = case_of(load_checked(self._pair.file), {"localhost": LocalHost()})
        assert found.endpoints is not None
        not_asked = {name: why for name, why in found.not_asked.items() if name != ROUTER}
        endpoints = replace(found.endpoints, router=router.endpoints.router)
        wants = {
            name: want if nixl else replace(want, engine_python=None)
            for name, want in found.wants.items()
        }
        return replace(found, endpoints=endpoints, not_asked=not_asked, wants=wants)

    async def facts(self, router: Routed, *, nixl: bool = False) -> PairFacts:
        # Lines have whole seconds, and a second is where this test may have begun.
        look = replace(LOOK, window_s=time.time() - self._began + 1)
        facts, _ = await examine_async(self.case(router, nixl=nixl), look)
        return facts

    async def finds(self, router: Routed, *, nixl: bool = False) -> list[Finding]:
        return run_checks(await self.facts(router, nixl=nixl), CHECKS)

    async def failures(self, router: Routed) -> list[Finding]:
        findings = await self.finds(router)
        for finding in findings:
            if finding.status in ("fail", "warn"):
                print(finding.status, finding.id, finding.target, *finding.evidence, sep="\n    ")
        return [finding for finding in findings if finding.status == "fail"]


@pytest.fixture
async def doctor(pair: Pair) -> Doctor:
    await asyncio.sleep(1.1)  # what others left in the logs is in seconds before this one
    return Doctor(pair)


async def test_a_healthy_pair_is_all_green_on_a_first_run(doctor: Doctor, router: Routed) -> None:
    findings = await doctor.finds(router, nixl=True)
    bad = [(f.id, f.target, f.evidence) for f in findings if f.status in ("fail", "warn")]
    assert bad == []
    passed = {finding.id for finding in findings if finding.status == "pass"}
    assert {
        "host.reach",
        "engine.bidirectional",
        "engine.drift",
        "engine.flags.equal",
        "engine.health",
        "engine.id",
        "engine.plugin",
        "engine.role",
        "engine.room",
        "engine.side_channel",
        "engine.streaming",
        "engine.weights.equal",
        "logs.signature",
        "router.pair",
        "router.ttl",
        "runtime.bytes",
        "runtime.late_reads",
        "runtime.output",
        "runtime.transport",
        "runtime.two_turn",
    } <= passed


async def test_turns_that_reuse_and_first_turns_are_no_faults(
    doctor: Doctor, router: Routed, session: aiohttp.ClientSession
) -> None:
    for place in range(3):
        prompt = await begin(router, session, f"fine-{place}", 7000 + 10 * place)
        assert (await follow(router, session, f"fine-{place}", prompt)).ok
    assert [f for f in await doctor.finds(router) if f.status in ("fail", "warn")] == []


@pytest.mark.engines(Setup("decode-off", connector={"decode": FLAG_OFF}))
async def test_the_flag_missing_on_decode(pair: Pair, doctor: Doctor) -> None:
    async with routed(pair, need_pair=False) as router:
        first = (await doctor.failures(router))[0]
    assert first.id == "engine.bidirectional"
    assert "decode-0 runs with `bidirectional_kv_xfer` off" in first.evidence


@pytest.mark.engines(Setup("prefill-off", connector={"prefill": FLAG_OFF}))
async def test_the_flag_missing_on_prefill(pair: Pair, doctor: Doctor) -> None:
    async with routed(pair, need_pair=False) as router:
        first = (await doctor.failures(router))[0]
    assert first.id == "engine.bidirectional"
    assert "prefill-0 runs with `bidirectional_kv_xfer` off" in first.evidence


async def test_a_ttl_that_lapses(
    pair: Pair, doctor: Doctor, router: Routed, session: aiohttp.ClientSession
) -> None:
    pair.set_ttl(6)  # behind the router's back
    prompt = await begin(router, session, "lapse", 7100)
    await asyncio.sleep(2)
    assert (await follow(router, session, "lapse", prompt)).ok
    failures = await doctor.failures(router)
    assert failures[0].id == "router.ttl"
    assert failures[0].evidence[0].startswith("decode-0 keeps blocks 6s (set while it runs)")
    assert "runtime.late_reads" in {each.id for each in failures}

    pair.set_ttl(None)  # what has happened is told for a while
    (first, *_) = await doctor.failures(router)
    assert first.id == "runtime.late_reads"
    assert "prefill declined to read blocks that had expired, in prefill-0" in first.evidence[0]


async def test_handles_of_a_decode_that_was_restarted(
    pair: Pair, doctor: Doctor, session: aiohttp.ClientSession
) -> None:
    prompt = random_ids(7200, 300)
    _, first = await pair.turn_by_hand(session, prompt, max_tokens=8)
    assert first.token_ids is not None
    await asyncio.to_thread(pair.restart_decode, kill=True)
    # As the published proxy does it, which hears of no restart.
    again, _ = await pair.turn_by_hand(
        session, [*prompt, *first.token_ids, 9], handle=first.kv_transfer_params, cache_salt="r"
    )
    assert again.status == 500
    async with routed(pair) as router:
        found = (await doctor.failures(router))[0]
    assert found.id == "runtime.restarted"
    assert found.evidence[0].startswith("decode-0 was started again at ")


@pytest.mark.engines(SMALL)
async def test_a_decode_that_has_no_room(
    pair: Pair,
    doctor: Doctor,
    session: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention, "shortfall", lambda *args, **more: 0)
    limits = TurnLimits(first_byte=90.0, idle=90.0, total=90.0)

    async def turn(router: Routed, place: int) -> None:
        prompt, name = random_ids(7300 + place, 500), f"room-{place}"
        await router.send(
            session, prompt=prompt, max_tokens=12, conversation_id=name, limits=limits
        )

    async with routed(pair) as router:
        waits = asyncio.gather(*(turn(router, place) for place in range(20)))
        async with asyncio.timeout(25):
            while not (await pair.metrics(session, "decode")).starved:
                await asyncio.sleep(0.2)
        while (await pair.metrics(session, "decode")).running:
            await asyncio.sleep(0.2)
        failures = await doctor.failures(router)
        waits.cancel()
        async with session.put(router.url + REUSE_PATH, json={"share": 0}) as answer:
            assert answer.status == 200
    assert (failures[0].id, failures[0].target) == ("engine.room", "decode-0")
    assert "requests wait" in failures[0].evidence[0]


async def test_a_side_channel_that_is_dead(pair: Pair, doctor: Doctor, router: Routed) -> None:
    record = pair.record("decode")
    assert record.ref is not None
    assert record.side_channel_port is not None
    # Shared only while the filter is set: else these tests would hold the port as well.
    with listener_of(record.ref.pid, record.side_channel_port) as listener:
        swallow(listener)
    try:
        first = (await doctor.failures(router))[0]
    finally:
        with listener_of(record.ref.pid, record.side_channel_port) as listener:
            listener.setsockopt(socket.SOL_SOCKET, _DETACH_FILTER, 0)
    assert (first.id, first.target) == ("engine.side_channel", "decode-0")
    assert f":{record.side_channel_port}: it does not answer within" in first.evidence[0]


_ATTACH_FILTER, _DETACH_FILTER, _PIDFD_GETFD = 26, 27, 438


@contextlib.contextmanager
def listener_of(pid: int, port: int) -> Iterator[socket.socket]:
    """The listening socket of another process or of its children, shared with it."""
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        for number in listening(process, port):
            pidfd = os.pidfd_open(process.pid)
            libc = ctypes.CDLL(None, use_errno=True)
            taken = libc.syscall(_PIDFD_GETFD, pidfd, number, 0)
            os.close(pidfd)
            assert taken >= 0, os.strerror(ctypes.get_errno())
            with socket.socket(fileno=taken) as shared:
                yield shared
            return
    raise AssertionError(f"nobody listens on {port}")


def swallow(listener: socket.socket) -> None:
    """Let it listen on, and drop what comes: a packet filter on the socket itself."""
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, program)


def listening(process: psutil.Process, port: int) -> Iterator[int]:
    for each in process.net_connections(kind="tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port:
            yield each.fd
