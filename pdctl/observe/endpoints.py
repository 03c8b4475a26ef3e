"""Where a deployment's engines and router answer, and what its configuration says of them."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from pdctl.base.errors import UnreachableError
from pdctl.base.explain import ADMIN_TENANT
from pdctl.base.keyfile import HASHED, key_lines
from pdctl.base.process import ROLES, RoleName
from pdctl.config.model import Config, ExternalTarget


class Served(Protocol):
    """A process that answers over HTTP: a `ProcessSpec`, or the record of a started one."""

    @property
    def name(self) -> str: ...
    @property
    def role(self) -> RoleName: ...
    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def url(self) -> str: ...


@dataclass(frozen=True)
class Endpoint:
    """One server.

    Attributes:
        name: as in `prefill-0`.
        url: base URL without a slash at its end, as this machine reaches it.
        known_as: base URL by which the deployment's own processes know it; empty when the same.
    """

    name: str
    role: RoleName
    host: str
    url: str
    known_as: str = ""


@dataclass(frozen=True)
class Endpoints:
    """All servers of a deployment.

    Attributes:
        name: of the deployment.
        engines: prefill, then decode.
        router: None when the deployment has none that is known.
        dtype: as configured; `float32` gives an exact oracle.
        bidirectional, threshold: as configured, which for engines that something else runs is
            only what the user says of them.
        engine_key, router_key: keys to show, None when none is needed.
    """

    name: str
    engines: tuple[Endpoint, ...]
    router: Endpoint | None
    dtype: str = "auto"
    bidirectional: bool = True
    threshold: int = 64
    engine_key: str | None = field(default=None, repr=False)
    router_key: str | None = field(default=None, repr=False)

    def role(self, role: RoleName) -> tuple[Endpoint, ...]:
        """The engines of one role, in order."""
        return tuple(engine for engine in self.engines if engine.role == role)

    def by_url(self, url: str) -> Endpoint | None:
        """The engine at a base URL."""
        wanted = url.rstrip("/")
        found = (each for each in self.engines if wanted in (each.url, each.known_as))
        return next(found, None)


def endpoints_of(
    config: Config,
    processes: Iterable[Served],
    *,
    engine_key: str | None = None,
    router_key: str | None = None,
    near: Callable[[Served], str] | None = None,
) -> Endpoints:
    """The servers of a deployment.

    Args:
        processes: as started (ports chosen), or as rendered. Engines of an external target are
            taken from the configuration, so only the router is looked for among these.
        near: gives the URL at which this machine reaches a process; by default its own.

    Raises:
        UnreachableError: an engine has no port yet, so nothing can be running.
    """
    found = sorted((_endpoint(p, near) for p in processes), key=lambda e: ROLES.index(e.role))
    engines = tuple(endpoint for endpoint in found if endpoint.role != "router")
    if isinstance(config.target, ExternalTarget):
        engines = _external(config.target)
    routers = [endpoint for endpoint in found if endpoint.role == "router"]
    return Endpoints(
        name=config.name,
        engines=engines,
        router=routers[0] if routers else None,
        dtype=config.model.dtype,
        bidirectional=config.kv.bidirectional,
        threshold=config.kv.recompute_threshold,
        engine_key=engine_key,
        router_key=router_key,
    )


def first_key(text: str) -> str | None:
    """The first key of `router.api_keys_file` that can be shown to the router."""
    return next((key for _, key in _shown(text)), None)


def tenant_key(text: str, tenant: str) -> str | None:
    """A key of one tenant in that file; None when it has none that can be shown."""
    return next((key for name, key in _shown(text) if name == tenant), None)


def best_key(text: str) -> str | None:
    """The key of that file that learns most from the router: the admin's, if it can be shown."""
    return tenant_key(text, ADMIN_TENANT) or first_key(text)


def _shown(text: str) -> Iterator[tuple[str, str]]:
    """Tenant and key of each line, but for keys of which the file has only the digest."""
    for line in key_lines(text):
        if not line.key.startswith(HASHED):
            yield line.tenant, line.key


def _endpoint(process: Served, near: Callable[[Served], str] | None) -> Endpoint:
    if not process.port:
        raise UnreachableError(
            f"`{process.name}` has no port yet: it was never started",
            where=process.host,
            hints=["pdctl up"],
        )
    url = near(process) if near else process.url
    known_as = "" if url == process.url else process.url
    return Endpoint(process.name, process.role, process.host, url, known_as)


def _external(target: ExternalTarget) -> tuple[Endpoint, ...]:
    by_role: dict[RoleName, list[str]] = {"prefill": target.prefill, "decode": target.decode}
    return tuple(
        Endpoint(f"{role}-{index}", role, url.rstrip("/"), url.rstrip("/"))
        for role, urls in by_role.items()
        for index, url in enumerate(urls)
    )
