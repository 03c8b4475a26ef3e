"""Asking routers what they know of single engines, and telling them which are drained."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from pdctl.base.errors import BadAnswerError
from pdctl.base.explain import ENGINES_PATH
from pdctl.base.process import RoleName
from pdctl.observe.http import HttpStatusError, ask_json
from pdctl.observe.reuse import explained

_TIMEOUT_S = 10.0

Setting = Mapping[str, Mapping[str, str]]
"""By URL of an engine, as its router knows it: `drained`, `generation`."""


@dataclass(frozen=True)
class EngineView:
    """One engine as one router sees it.

    Attributes:
        drained: why it gets nothing new; empty when it does.
        turns: requests that still need it.
        handles: kept of its blocks.
        moves_kv: through some pair blocks were seen to arrive on decode.
        proven: through some pair they were seen to go both ways.
        reasons: of its pairs that were not.
    """

    url: str
    role: RoleName
    healthy: bool
    generation: str
    drained: str
    turns: int
    handles: int
    moves_kv: bool
    proven: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class RouterView:
    """One router's engines, by URL."""

    name: str
    url: str
    engines: Mapping[str, EngineView]

    @property
    def reuses(self) -> bool:
        """Whether any pair of it was seen to reuse at all."""
        return any(engine.proven for engine in self.engines.values())


async def ask_engines(
    routers: Sequence[tuple[str, str]], key: str | None, setting: Setting | None = None
) -> list[RouterView]:
    """Ask all routers at the same time; with a setting, tell each what it has an engine of.

    Args:
        routers: name and URL of each.
        key: an API key of the tenant `admin`, where routers want one.

    Raises:
        PdctlError: a router does not answer, or refuses; the first such of all.
    """
    async with aiohttp.ClientSession() as session:
        found = await asyncio.gather(
            *(_ask(session, *each, key, setting) for each in routers), return_exceptions=True
        )
    views = []
    for each in found:
        if isinstance(each, BaseException):
            raise each
        views.append(each)
    return views


async def _ask(
    session: aiohttp.ClientSession, name: str, url: str, key: str | None, setting: Setting | None
) -> RouterView:
    where = url + ENGINES_PATH
    try:
        answer = await ask_json(session, where, key=key, timeout=_TIMEOUT_S)
        view = _read(name, url, answer)
        known = {each: said for each, said in (setting or {}).items() if each in view.engines}
        if not known:
            return view
        body = {"engines": known}
        answer = await ask_json(
            session, where, method="PUT", body=body, key=key, timeout=_TIMEOUT_S
        )
    except HttpStatusError as error:
        raise explained(error, "drain engines") from error
    return _read(name, url, answer)


def _read(name: str, url: str, answer: Mapping[str, Any]) -> RouterView:
    try:
        engines = {each["url"]: _engine(each) for each in answer["engines"]}
    except (KeyError, TypeError, ValueError):
        raise BadAnswerError("it does not answer as pdctl's router does", where=url) from None
    return RouterView(name, url, engines)


def _engine(said: Mapping[str, Any]) -> EngineView:
    pairs = said["pairs"]
    return EngineView(
        url=said["url"],
        role=said["role"],
        healthy=bool(said["healthy"]),
        generation=str(said["generation"]),
        drained=str(said["drained"]),
        turns=int(said["turns"]),
        handles=int(said["handles"]),
        moves_kv=any(pair["moves_kv"] for pair in pairs),
        proven=any(pair["ok"] for pair in pairs),
        reasons=tuple(dict.fromkeys(str(pair["reason"]) for pair in pairs if pair["reason"])),
    )
