"""Traces of turns, as a collector gets them; and nothing of it when nobody asks for them."""

import asyncio
import gzip
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from pdctl.config.model import RouterLimits
from pdctl.router.serve import serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings
from pdctl.router.tracing import ENDPOINT_ENV, tracing_of
from tests.router.fake import FakeEngine, error, running
from tests.router.test_server import LONG, World, answered, user

CLIENTS_TRACE = "0af7651916cd43dd8448eb211c80319c"
CLIENTS_SPAN = "b7ad6b7169203331"


@dataclass
class Span:
    """What a collector gets of one."""

    trace: str
    id: str
    parent: str
    failed: bool
    said: dict[str, Any]


@dataclass
class Collector:
    """Speaks OTLP over HTTP."""

    url: str = ""
    about: dict[str, Any] = field(default_factory=dict)
    spans: list[tuple[str, Span]] = field(default_factory=list)

    async def take(self, request: web.Request) -> web.Response:
        data = await request.read()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            self.about = _plain(resource.resource.attributes)
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                made = Span(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.status.code == 2,
                    _plain(span.attributes),
                )
                self.spans.append((span.name, made))
        return web.Response(content_type="application/x-protobuf")

    def named(self, name: str) -> list[Span]:
        return [span for its, span in self.spans if its == name]


def parsed(headers: list[str | None]) -> set[tuple[str, str, bool]]:
    """Trace, span, and whether it is sampled; a probe, which may come in between, has none."""
    parts = [header.split("-") for header in headers if header is not None]
    return {(trace, span, bool(int(flags, 16) & 1)) for _, trace, span, flags in parts}


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@asynccontextmanager
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield made
    finally:
        await runner.cleanup()


@asynccontextmanager
async def traced(monkeypatch: pytest.MonkeyPatch, at: Collector) -> AsyncIterator[World]:
    """`World` with traces; what it has sent is all there at its end."""
    monkeypatch.setenv(ENDPOINT_ENV, at.url)
    tracing = tracing_of(os.environ, "pair")
    assert tracing is not None
    p, d = FakeEngine("prefill"), FakeEngine("decode")
    p.peer = d
    async with running(p, d), aiohttp.ClientSession() as http:
        settings = RouterSettings(
            (p.url,), (d.url,), port=0, threshold=2, limits=RouterLimits(drain=1.0)
        )
        router = Router(settings, tracing=tracing)
        async with serving(router) as url:
            await router.watcher.look()
            p.traces.clear()
            d.traces.clear()
            yield World(url, router, p, d, http)
    await asyncio.to_thread(tracing.close)


async def test_a_turn_is_one_trace_and_its_legs_are_the_parents_of_the_engines_spans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with collector() as at:
        async with traced(monkeypatch, at) as w:
            _, first, _ = await w.ask([user(LONG)])
            await w.ask([user(LONG), answered(first), user("more")], stream=True)
            sent = {"prefill": list(w.p.traces), "decode": list(w.d.traces)}
        one, other = at.named("turn")
        assert one.trace != other.trace
        assert (one.parent, other.parent) == ("", "")
        assert (one.said["pdctl.outcome"], other.said["pdctl.outcome"]) == ("MISS", "HIT")
        assert other.said["pdctl.reused_tokens"] > 0
        assert other.said["pdctl.ttft_s"] > 0
        for name in ("prefill", "decode"):
            legs = at.named(name)
            assert [leg.parent for leg in legs] == [one.id, other.id]
            assert [leg.trace for leg in legs] == [one.trace, other.trace]
            # What an engine is sent names the leg, so its own span is put under it.
            expected = {(leg.trace, leg.id, True) for leg in legs}
            assert expected <= parsed(sent[name])
        assert [leg.said["pdctl.carries_handle"] for leg in at.named("prefill")] == [False, True]
        assert at.about["service.name"] == "pdctl-router"
        assert at.about["pdctl.deployment"] == "pair"


async def test_a_clients_own_trace_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as at:
        async with traced(monkeypatch, at) as w:
            body = {"model": "m", "messages": [user("hello")]}
            sent = {"traceparent": f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-01", "tracestate": "a=b"}
            url = f"{w.url}/v1/chat/completions"
            async with w.http.post(url, json=body, headers=sent) as answer:
                assert answer.status == 200
            told = [*w.p.traces, *w.d.traces]
        (turn,) = at.named("turn")
        assert (turn.trace, turn.parent) == (CLIENTS_TRACE, CLIENTS_SPAN)
        assert {trace for trace, _, _ in parsed(told)} == {CLIENTS_TRACE}


async def test_a_client_that_is_not_sampled_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as at:
        async with traced(monkeypatch, at) as w:
            body = {"model": "m", "messages": [user("hello")]}
            sent = {"traceparent": f"00-{CLIENTS_TRACE}-{CLIENTS_SPAN}-00"}
            async with w.http.post(f"{w.url}/v1/chat/completions", json=body, headers=sent):
                pass
            assert {each[::2] for each in parsed(w.d.traces)} == {(CLIENTS_TRACE, False)}
        assert at.spans == []


async def test_a_leg_that_fails_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with collector() as at:
        async with traced(monkeypatch, at) as w:
            w.p.fault = lambda *_: error(500, "broken")
            w.d.fault = lambda *_: error(500, "broken too")
            status, _, _ = await w.ask([user(LONG)])
            assert status == 500
        assert at.named("prefill")[0].failed
        assert all(leg.failed for leg in at.named("decode"))
        (turn,) = at.named("turn")
        assert turn.said["http.response.status_code"] == 500
        assert turn.failed


async def test_a_collector_that_is_gone_costs_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    async with traced(monkeypatch, Collector(url="http://127.0.0.1:9")) as w:
        assert (await w.ask([user(LONG)]))[0] == 200


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ""),
        ({ENDPOINT_ENV: "http://c:4318", "OTEL_SDK_DISABLED": "true"}, ""),
        ({ENDPOINT_ENV: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "not grpc"),
    ],
)
def test_what_is_not_asked_for_or_not_spoken_is_off(
    environ: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "pdctl.router"):
        assert tracing_of(environ, "pair") is None
    assert said in caplog.text
    assert bool(caplog.text) is bool(said)


def test_without_the_package_the_router_serves_and_says_so() -> None:
    code = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "from pdctl.router.tracing import tracing_of\n"
        "print(tracing_of({'OTEL_EXPORTER_OTLP_ENDPOINT': 'http://c:4318'}, 'pair'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    assert "pip install 'pdctl[otel]'" in done.stderr


def test_off_nothing_of_it_is_imported() -> None:
    code = (
        "import sys\n"
        "from pdctl.router.serve import tracing_of\n"
        "from pdctl.router.server import Router\n"
        "assert tracing_of({}, 'pair') is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
