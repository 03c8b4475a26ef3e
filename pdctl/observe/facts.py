"""Gathering facts: everything is asked at the same time, and nothing that fails stops the rest."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import aiohttp

from pdctl.base.errors import PdctlError, UnreachableError
from pdctl.base.explain import ADMIN_TENANT, REUSE_PATH, STATE_PATH
from pdctl.base.facts import (
    HostFacts,
    PairFacts,
    PairState,
    RouterFacts,
    RouterMetrics,
    ServingFacts,
    TwoTurnFacts,
)
from pdctl.observe.endpoints import Endpoint, Endpoints
from pdctl.observe.http import HttpStatusError, ask, ask_json
from pdctl.observe.metrics import scrape_engine, scrape_router

_NOT_YET = ("", "not probed yet", "probe did not finish")
"""What the router says of a pair of which it knows nothing yet."""


async def gather(
    session: aiohttp.ClientSession,
    endpoints: Endpoints,
    *,
    two_turn: TwoTurnFacts | None = None,
    timeout: float = 10.0,
) -> PairFacts:
    """Ask all servers; what does not answer within `timeout` seconds has its `error` set."""
    router = endpoints.router
    asked = [read_engine(session, e, endpoints.engine_key, timeout) for e in endpoints.engines]
    engines, router_facts = await asyncio.gather(
        asyncio.gather(*asked),
        _maybe_router(session, router, endpoints.router_key, timeout),
    )
    names = dict.fromkeys([engine.host for engine in endpoints.engines])
    return PairFacts(
        name=endpoints.name,
        taken_at=time.time(),
        hosts=tuple(HostFacts(name) for name in names),
        engines=tuple(engines),
        router=router_facts,
        two_turn=two_turn,
    )


async def read_engine(
    session: aiohttp.ClientSession, endpoint: Endpoint, key: str | None, timeout: float
) -> ServingFacts:
    """One engine's facts; never raises for an engine that does not answer."""
    facts = ServingFacts(endpoint.name, endpoint.role, endpoint.host, endpoint.url)
    try:
        _, models, version, metrics = await asyncio.gather(
            ask(session, endpoint.url + "/health", key=key, timeout=timeout),
            ask_json(session, endpoint.url + "/v1/models", key=key, timeout=timeout),
            ask_json(session, endpoint.url + "/version", key=key, timeout=timeout),
            scrape_engine(session, endpoint.url, key=key, timeout=timeout),
        )
    except PdctlError as error:
        return replace(facts, error=error.message)
    model = _first(models.get("data"))
    return replace(
        facts,
        version=_text(version.get("version")),
        model=_text(model.get("id")),
        model_root=_text(model.get("root")),
        max_model_len=_count(model.get("max_model_len")),
        metrics=metrics,
    )


async def read_router(
    session: aiohttp.ClientSession, endpoint: Endpoint, key: str | None, timeout: float
) -> RouterFacts:
    """The router's facts; never raises for a router that does not answer."""
    try:
        state = await ask_json(session, endpoint.url + STATE_PATH, key=key, timeout=timeout)
    except UnreachableError as error:
        if isinstance(error, HttpStatusError) and error.status in (404, 405):
            return await _other_router(session, endpoint, key, timeout)
        why = error.message
        if isinstance(error, HttpStatusError) and error.status == 403:
            why += f", which shows its state to a key of the tenant `{ADMIN_TENANT}` only: write "
            why += "that key, and not its digest, into `router.api_keys_file`"
        return RouterFacts(endpoint.url, error=why, host=endpoint.host)
    return RouterFacts(
        url=endpoint.url,
        ours=True,
        ready=bool(state.get("ready")),
        pairs=tuple(_pair(pair) for pair in state.get("pairs") or () if isinstance(pair, dict)),
        ttl=state.get("ttl"),
        threshold=_count(state.get("threshold")),
        handles=_count(state.get("handles")),
        retained_tokens=_count(state.get("retained_tokens")),
        metrics=await _router_metrics(session, endpoint.url, key, timeout),
        version=_text(state.get("version")),
        host=endpoint.host,
    )


async def read_switches(
    session: aiohttp.ClientSession, facts: RouterFacts, key: str | None, timeout: float
) -> RouterFacts:
    """The same router with its switch, and whether it lets strangers in."""
    if not facts.ours:
        return facts
    share, is_open = await asyncio.gather(
        _share(session, facts.url, key, timeout), _is_open(session, facts.url, timeout)
    )
    return replace(facts, share=share, open=is_open)


async def _router_metrics(
    session: aiohttp.ClientSession, url: str, key: str | None, timeout: float
) -> RouterMetrics | None:
    try:
        return await scrape_router(session, url, key=key, timeout=timeout)
    except PdctlError:
        return None


async def _share(
    session: aiohttp.ClientSession, url: str, key: str | None, timeout: float
) -> float | None:
    """Of conversations that reuse; a router with keys tells it only to its administrator."""
    try:
        answer = await ask_json(session, url + REUSE_PATH, key=key, timeout=timeout)
    except PdctlError:
        return None
    share = answer.get("share")
    return float(share) if isinstance(share, int | float) else None


async def _is_open(session: aiohttp.ClientSession, url: str, timeout: float) -> bool | None:
    """Whether it answers a client that shows no key."""
    try:
        await ask(session, url + "/v1/models", timeout=timeout)
    except HttpStatusError as error:
        return False if error.status in (401, 403) else None
    except PdctlError:
        return None
    return True


async def _other_router(
    session: aiohttp.ClientSession, endpoint: Endpoint, key: str | None, timeout: float
) -> RouterFacts:
    try:
        health = await ask_json(session, endpoint.url + "/health", key=key, timeout=timeout)
    except UnreachableError:
        health = {}
    # Nobody but upstream's example tells its health in these words.
    example = "cached_conversations" in health
    return RouterFacts(endpoint.url, example=example, ready=True, host=endpoint.host)


async def _maybe_router(
    session: aiohttp.ClientSession, endpoint: Endpoint | None, key: str | None, timeout: float
) -> RouterFacts | None:
    return None if endpoint is None else await read_router(session, endpoint, key, timeout)


def has_still_to_say(router: RouterFacts) -> bool:
    """Whether there is a pair of which the router knows nothing yet."""
    return any(pair.reason in _NOT_YET for pair in router.pairs if not pair.ok)


def _pair(pair: dict[str, Any]) -> PairState:
    return PairState(
        prefill=str(pair.get("prefill") or ""),
        decode=str(pair.get("decode") or ""),
        ok=bool(pair.get("ok")),
        reason=str(pair.get("reason") or ""),
    )


def _first(items: object) -> dict[str, Any]:
    if isinstance(items, list) and items and isinstance(items[0], dict):
        return items[0]
    return {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
