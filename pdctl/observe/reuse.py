"""Asking routers for whom reuse is on, and setting it."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from pdctl.base.errors import BadAnswerError, PdctlError, PermissionDeniedError
from pdctl.base.explain import ADMIN_TENANT, REUSE_PATH
from pdctl.observe.http import HttpStatusError, ask_json

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class Change:
    """What to set: for one tenant, or for everybody.

    Attributes:
        share: of conversations, 0 to 1.
        tenant: None for everybody, and then no tenant keeps a share of its own.
    """

    share: float
    tenant: str | None = None


@dataclass(frozen=True)
class RouterReuse:
    """One router's setting, after a change if there was one.

    Attributes:
        share: of conversations that reuse, 0 to 1; None when it could not be asked.
        tenants: shares of tenants that have one of their own.
        released: handles that the change gave back; None without a change.
        error: why it could not be asked or changed.
    """

    name: str
    url: str
    share: float | None = None
    tenants: Mapping[str, float] = field(default_factory=dict)
    released: int | None = None
    error: PdctlError | None = None

    def as_dict(self) -> dict[str, object]:
        """The shape in `reuse --json`."""
        return {
            "name": self.name,
            "url": self.url,
            "share": self.share,
            "tenants": dict(self.tenants),
            "released": self.released,
            "error": self.error.message if self.error else None,
        }


@dataclass(frozen=True)
class Setting:
    """The whole setting of one router: `share` for everybody but `tenants`, 0 to 1 each."""

    share: float
    tenants: Mapping[str, float] = field(default_factory=dict)


async def read_setting(session: aiohttp.ClientSession, url: str, key: str | None) -> Setting:
    """What one router says of its switch.

    Raises:
        PdctlError: it does not answer, has no switch, or wants another key.
    """
    return await _asked(session, url, key, None)


async def put_setting(
    session: aiohttp.ClientSession, url: str, key: str | None, setting: Setting
) -> Setting:
    """Set one router's switch; what it then says of it.

    Raises:
        PdctlError: it does not answer, has no switch, or wants another key.
    """
    body = {"share": setting.share, "tenants": dict(setting.tenants)}
    return await _asked(session, url, key, body)


async def _asked(
    session: aiohttp.ClientSession, url: str, key: str | None, body: Mapping[str, object] | None
) -> Setting:
    method = "GET" if body is None else "PUT"
    try:
        answer = await ask_json(
            session, url + REUSE_PATH, method=method, body=body, key=key, timeout=_TIMEOUT_S
        )
    except HttpStatusError as error:
        raise explained(error, "switch reuse") from error
    said = _read(RouterReuse(url, url), answer)
    assert said.share is not None
    return Setting(said.share, said.tenants)


async def ask_all(
    routers: Sequence[tuple[str, str]], key: str | None, change: Change | None
) -> list[RouterReuse]:
    """Ask or change all at the same time; one that fails does not keep the others from it.

    Args:
        routers: name and URL of each.
        key: an API key of the tenant `admin`, where routers want one.
    """
    async with aiohttp.ClientSession() as session:
        found = await asyncio.gather(*(_ask(session, *each, key, change) for each in routers))
    return list(found)


async def _ask(
    session: aiohttp.ClientSession, name: str, url: str, key: str | None, change: Change | None
) -> RouterReuse:
    router = RouterReuse(name, url)
    where = url + REUSE_PATH
    try:
        if change is None:
            return _read(router, await ask_json(session, where, key=key, timeout=_TIMEOUT_S))
        setting: dict[str, object] = {"share": change.share}
        if change.tenant is not None:
            now = _read(router, await ask_json(session, where, key=key, timeout=_TIMEOUT_S))
            tenants = {**now.tenants, change.tenant: change.share}
            setting = {"share": now.share, "tenants": tenants}
        answer = await ask_json(
            session, where, method="PUT", body=setting, key=key, timeout=_TIMEOUT_S
        )
        return _read(router, answer)
    except HttpStatusError as error:
        return replace(router, error=explained(error, "switch reuse"))
    except PdctlError as error:
        return replace(router, error=error)


def _read(router: RouterReuse, answer: Mapping[str, object]) -> RouterReuse:
    share, tenants, released = (answer.get(key) for key in ("share", "tenants", "released"))
    if not isinstance(share, int | float) or not isinstance(tenants, dict):
        raise BadAnswerError("it does not answer as pdctl's router does", where=router.url)
    return replace(
        router,
        share=float(share),
        tenants=tenants,
        released=released if isinstance(released, int) else None,
    )


def explained(error: HttpStatusError, what: str) -> PdctlError:
    """A router's refusal in words.

    Args:
        what: was asked for, as in "may switch reuse".
    """
    if error.status in (401, 403):
        return PermissionDeniedError(
            f"only a key of the tenant `{ADMIN_TENANT}` may {what}",
            where=error.where,
            hints=[
                f"add a line `{ADMIN_TENANT}:KEY` to the router's file of API keys",
                "where that has digests only, `--api-keys` names a file with the key itself",
            ],
        )
    if error.status in (404, 405):
        return BadAnswerError(
            "it has no switch: it is not pdctl's router, or an older one", where=error.where
        )
    if error.status == 400:
        return BadAnswerError("it refuses this setting", where=error.where, detail=error.detail)
    return error
