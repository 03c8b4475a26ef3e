"""What can be changed while the router runs: its paths `/pdctl/v1/reuse` and `/pdctl/v1/ttl`.

A change is this process's alone: it lasts until the process ends, and a router that starts takes
what it is started with again. Only the TTL is kept in a file, where one is named (`kept_ttl`).
"""

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any

import orjson
from aiohttp import web

from pdctl.base.explain import ADMIN_TENANT, REUSE_PATH, TTL_PATH
from pdctl.base.words import one_line
from pdctl.router.core import Policy
from pdctl.router.front import error_answer
from pdctl.router.giving import Shared, take_and_let_go
from pdctl.router.keys import ApiKeys

log = logging.getLogger("pdctl.router")


class WrongSetting(Exception):  # noqa: N818 - the client's error, which the text tells
    """What was sent is no setting."""


class Gate:
    """Who may look at settings and change them.

    Args:
        api_keys: gives the clients' keys; None where there are none, and then whoever reaches
            the router may, as they may use it. Else only the tenant `admin` may: an address
            proves nothing, since a proxy on this host has loopback's.
        tenant_of: whose request it is, as its key has proven.
    """

    def __init__(
        self,
        api_keys: Callable[[], ApiKeys | None],
        tenant_of: Callable[[web.Request], str],
    ) -> None:
        self.api_keys = api_keys
        self._tenant_of = tenant_of

    def refusal(self, request: web.Request) -> web.Response | None:
        """What to answer who may not."""
        if self.api_keys() is None or self._tenant_of(request) == ADMIN_TENANT:
            return None
        return error_answer(
            403, f"Only a key of the tenant `{ADMIN_TENANT}` may do this", "forbidden"
        )

    def engines_refusal(self, request: web.Request) -> web.Response | None:
        """What to answer who may not see the engines' addresses.

        They are for the tenant `admin`; where the file has none, nobody else could be asked.
        """
        keys = self.api_keys()
        has_admin = keys is not None and ADMIN_TENANT in keys.tenants.values()
        return self.refusal(request) if has_admin else None


class TtlSwitch:
    """Shows and changes for how long handles are offered.

    Handles that are there keep their own deadline, as decode's blocks do.

    Args:
        keep: writes down what is in force, for the next start.
    """

    def __init__(
        self, shared: Shared, policy: Policy, gate: Gate, keep: Callable[[float], None] | None
    ) -> None:
        self._shared = shared
        self._policy = policy
        self._gate = gate
        self._keep = keep

    def add_to(self, app: web.Application) -> None:
        """Add the two routes."""
        app.router.add_get(TTL_PATH, self._get)
        app.router.add_put(TTL_PATH, self._put)

    async def _get(self, request: web.Request) -> web.Response:
        return self._gate.refusal(request) or web.json_response({"ttl": self._policy.ttl})

    async def _put(self, request: web.Request) -> web.Response:
        if refusal := self._gate.refusal(request):
            return refusal
        try:
            async with asyncio.timeout(self._shared.limits.idle):
                ttl = parse_ttl(await request.read())
        except WrongSetting as wrong:
            return error_answer(400, str(wrong), "invalid_request")
        log.warning("handles are offered for %g s from now on, not %g s", ttl, self._policy.ttl)
        self._policy.ttl = ttl
        try:
            if self._keep is not None:
                self._keep(ttl)
        except OSError as error:
            log.error("the TTL cannot be written down for the next start: %s", error)
            return error_answer(
                500, f"It is in force, and the next start will not know: {error.strerror}", "ttl"
            )
        return web.json_response({"ttl": ttl})


class ReuseSwitch:
    """Shows and changes for whom reuse is on."""

    def __init__(self, shared: Shared, policy: Policy, gate: Gate) -> None:
        self._shared = shared
        self._policy = policy
        self._gate = gate

    def add_to(self, app: web.Application) -> None:
        """Add the two routes."""
        app.router.add_get(REUSE_PATH, self._get)
        app.router.add_put(REUSE_PATH, self._put)

    def state(self) -> dict[str, object]:
        """What both answers say."""
        return {"share": self._policy.share, "tenants": dict(self._policy.tenant_shares)}

    async def _get(self, request: web.Request) -> web.Response:
        return self._gate.refusal(request) or web.json_response(self.state())

    async def _put(self, request: web.Request) -> web.Response:
        if refusal := self._gate.refusal(request):
            return refusal
        try:
            async with asyncio.timeout(self._shared.limits.idle):
                share, tenants = parse_setting(await request.read())
            self._require_known(tenants)
        except WrongSetting as wrong:
            return error_answer(400, str(wrong), "invalid_request")
        self._policy.share = share
        self._policy.tenant_shares = tenants
        log.warning("reuse is set to %g, by tenant: %s", share, one_line(str(tenants)))
        return web.json_response(self.state() | {"released": await self._give_back()})

    def _require_known(self, tenants: dict[str, float]) -> None:
        """A name that is misspelt would switch nothing off."""
        keys = self._gate.api_keys()
        known = set() if keys is None else set(keys.tenants.values())
        for name in tenants:
            if name not in known:
                raise WrongSetting(f"No API key has the tenant `{name}`")

    async def _give_back(self) -> int:
        """Release what was kept for those who do not reuse any more. Returns how many."""
        if min(self._policy.share, *self._policy.tenant_shares.values(), 1.0) == 1.0:
            return 0
        reuses = self._policy.reuses
        taking = self._shared.store.take_all(
            lambda tenant, conversation: not reuses(tenant, conversation)
        )
        return await take_and_let_go(self._shared, taking, "reuse_off")


def parse_ttl(raw: bytes) -> float:
    """The seconds in `{"ttl": seconds}`.

    Raises:
        WrongSetting: it is something else.
    """
    body = object_of(raw)
    ttl = body.get("ttl")
    if body.keys() != {"ttl"} or isinstance(ttl, bool) or not isinstance(ttl, int | float):
        raise WrongSetting("The body must be an object with `ttl`, a number of seconds")
    if not (math.isfinite(ttl) and ttl > 0):
        raise WrongSetting("`ttl` must be more than 0")
    return float(ttl)


def object_of(raw: bytes) -> dict[str, Any]:
    """A JSON object.

    Raises:
        WrongSetting: it is none.
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise WrongSetting("The body is not JSON") from None
    if not isinstance(body, dict):
        raise WrongSetting("The body must be an object")
    return body


def parse_setting(raw: bytes) -> tuple[float, dict[str, float]]:
    """The whole setting: `{"share": 0 to 1, "tenants": {name: 0 to 1}}`.

    Raises:
        WrongSetting: it is something else.
    """
    body = object_of(raw)
    if "share" not in body or body.keys() - {"share", "tenants"}:
        raise WrongSetting("The body must be an object with `share` and perhaps `tenants`")
    tenants = body.get("tenants", {})
    if not isinstance(tenants, dict):
        raise WrongSetting("`tenants` must be an object of shares by name")
    return _share(body["share"]), {name: _share(value) for name, value in tenants.items()}


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise WrongSetting("A share must be a number from 0 to 1")
    return float(value)
