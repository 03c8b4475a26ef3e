"""Single engines while the router runs: its path `/pdctl/v1/engines`.

A drained engine gets nothing new, what it has goes on, and the handles of its blocks are given
back. An engine of another generation works with those of its own generation only: so an upgrade
goes from cell to cell. Unlike other settings these survive a restart of the router, where it has a
file: half an upgrade is no time to forget which engines may not work together.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from pdctl.base.explain import ENGINES_PATH
from pdctl.base.words import one_line
from pdctl.router.admin import Gate, WrongSetting, object_of
from pdctl.router.fleet import Engine
from pdctl.router.front import error_answer
from pdctl.router.giving import Shared, give_back_all
from pdctl.router.store import Total

log = logging.getLogger("pdctl.router")

_KEYS = frozenset({"drained", "generation"})
_LONGEST = 200

Settings = Mapping[str, Mapping[str, str]]
"""By the URL of an engine: `drained`, why it gets nothing new, and `generation`."""


class EngineSwitch:
    """Shows the engines and the pairs, drains and undrains them.

    Args:
        file: keeps what was said of them; read now.
    """

    def __init__(self, shared: Shared, gate: Gate, file: Path | None) -> None:
        self._shared = shared
        self._gate = gate
        self._file = file
        self._take_up()

    def add_to(self, app: web.Application) -> None:
        """Add the two routes."""
        app.router.add_get(ENGINES_PATH, self._get)
        app.router.add_put(ENGINES_PATH, self._put)

    async def state(self) -> dict[str, object]:
        """What both answers say."""
        totals = await self._shared.store.totals()
        engines = self._shared.fleet.engines()
        return {"engines": [self._of(each, totals.get(each.url, Total())) for each in engines]}

    def _of(self, engine: Engine, total: Total) -> dict[str, object]:
        return {
            "url": engine.url,
            "role": engine.role,
            "healthy": engine.healthy,
            "version": engine.version,
            "cell": engine.cell,
            "generation": engine.generation,
            "drained": engine.drained,
            "turns": engine.turns,
            "handles": total.handles,
            "pairs": self._pairs(engine.url),
        }

    def _pairs(self, url: str) -> list[dict[str, object]]:
        fleet = self._shared.fleet
        return [
            {
                "prefill": pair.prefill,
                "decode": pair.decode,
                "ok": pair.verdict == "ok",
                "moves_kv": pair.moves_kv,
                "reason": pair.why,
            }
            for key, pair in fleet.pairs.items()
            if url in key and fleet.together(*key)
        ]

    async def _get(self, request: web.Request) -> web.Response:
        return self._gate.refusal(request) or web.json_response(await self.state())

    async def _put(self, request: web.Request) -> web.Response:
        if refusal := self._gate.refusal(request):
            return refusal
        try:
            async with asyncio.timeout(self._shared.limits.idle):
                settings = parse_engines(await request.read())
            self._require_known(settings)
        except WrongSetting as wrong:
            return error_answer(400, str(wrong), "invalid_request")
        given_back = await self._apply(settings)
        self._keep()
        return web.json_response(await self.state() | {"released": given_back})

    def _require_known(self, settings: Settings) -> None:
        known = {engine.url for engine in self._shared.fleet.engines()}
        for url in settings:
            if url not in known:
                raise WrongSetting(f"`{one_line(url)}` is not an engine of this router")

    async def _apply(self, settings: Settings) -> int:
        """Change them at once, then let go of what nobody may use. Returns how many handles."""
        fleet = self._shared.fleet
        before = {each.url: (each.drained, each.generation) for each in fleet.engines()}
        self._set(settings)
        count = 0
        for engine in fleet.engines():
            if before[engine.url] == (engine.drained, engine.generation):
                continue
            if engine.drained:
                why = one_line(engine.drained)
                log.warning("%s %s gets nothing new: %s", engine.role, engine.url, why)
            else:
                log.warning("%s %s serves", engine.role, engine.url)
            if engine.role == "decode" and engine.drained:
                count += await give_back_all(self._shared, engine.url, "drained")
        return count

    def _set(self, settings: Settings) -> None:
        fleet = self._shared.fleet
        for url, setting in settings.items():
            if (generation := setting.get("generation")) is not None:
                fleet.move(url, generation)
            if (why := setting.get("drained")) is not None:
                fleet.drain(url, why)

    # --- over a restart ------------------------------------------------------------------

    def _take_up(self) -> None:
        if self._file is None:
            return
        try:
            settings = parse_engines(self._file.read_bytes())
        except FileNotFoundError:
            return
        except (OSError, WrongSetting) as error:
            log.error("what was said of single engines is lost: %s: %s", self._file, error)
            return
        known = {engine.url for engine in self._shared.fleet.engines()}
        self._set({url: setting for url, setting in settings.items() if url in known})

    def _keep(self) -> None:
        if self._file is None:
            return
        engines = {
            each.url: {"drained": each.drained, "generation": each.generation}
            for each in self._shared.fleet.engines()
            if each.drained or each.generation
        }
        scratch = self._file.with_name(f".{self._file.name}.new")
        try:
            scratch.write_text(json.dumps({"engines": engines}) + "\n")
            os.replace(scratch, self._file)
        except OSError as error:
            log.error("which engines are drained cannot be kept: %s: %s", self._file, error)


def parse_engines(raw: bytes) -> dict[str, dict[str, str]]:
    """The settings in `{"engines": {URL: {"drained": why, "generation": name}}}`.

    Raises:
        WrongSetting: it is something else.
    """
    body = object_of(raw)
    engines = body.get("engines")
    if body.keys() != {"engines"} or not isinstance(engines, dict):
        raise WrongSetting("The body must be an object with `engines`, an object by URL")
    return {str(url): _setting(url, value) for url, value in engines.items()}


def _setting(url: str, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not value or value.keys() - _KEYS:
        raise WrongSetting(f"`{one_line(url)}` needs `drained`, `generation`, or both")
    for name, text in value.items():
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise WrongSetting(f"`{name}` must be text, empty for none")
    return dict(value)
