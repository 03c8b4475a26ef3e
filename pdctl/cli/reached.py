"""Where the servers of a deployment are reached, for the commands that ask them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pdctl.base.process import ProcessSpec
    from pdctl.config.model import Config
    from pdctl.observe.endpoints import Endpoints


@contextmanager
def reached(config: "Config") -> "Iterator[Endpoints]":
    """Where the started deployment answers; one that pdctl did not start, where it is to be."""
    from pdctl.deploy.local import read_secrets
    from pdctl.deploy.reach import ways_to
    from pdctl.observe.endpoints import best_key, endpoints_of
    from pdctl.state.store import StateStore

    secrets = read_secrets(config)
    state = StateStore(config.name).load()
    processes = state.processes.values() if state and state.processes else _as_rendered(config)
    with ways_to(config) as near:
        yield endpoints_of(
            config,
            processes,
            engine_key=secrets.engine_key.value if secrets.engine_key else None,
            router_key=best_key(secrets.client_keys.value) if secrets.client_keys else None,
            near=near,
        )


def require_router(endpoints: "Endpoints") -> None:
    """Say at once that the deployment is not up, before anything is written or waited for.

    Raises:
        UnreachableError: no router answers.
    """
    import asyncio

    from pdctl.base.errors import UnreachableError
    from pdctl.observe.http import require_answer

    hints = ["pdctl status", "pdctl up"]
    if endpoints.router is None:
        raise UnreachableError(f"`{endpoints.name}` has no router", hints=hints)
    try:
        asyncio.run(require_answer(f"{endpoints.router.url}/health"))
    except UnreachableError as error:
        raise UnreachableError(
            f"the router of `{endpoints.name}` does not answer: {error.message}",
            where=endpoints.router.url,
            hints=hints,
        ) from error


def _as_rendered(config: "Config") -> "Iterable[ProcessSpec]":
    from pdctl.render.deployment import render
    from pdctl.render.place import place_of

    return render(config, place_of(config)).processes
