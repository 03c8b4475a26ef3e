"""Every prefill server with every decode server, each pair behind a router of its own.

That router runs here, for the time of one proof; what the deployment's own routers keep is left
alone.
"""

from dataclasses import replace

from pdctl.base.events import Listener
from pdctl.config.model import Config
from pdctl.engine import choices
from pdctl.observe.endpoints import Endpoint, Endpoints
from pdctl.observe.proof import VerifyReport
from pdctl.observe.turns import TurnLimits
from pdctl.observe.verify import VerifyOptions, verify
from pdctl.router.serve import serving
from pdctl.router.server import Router
from pdctl.router.settings import RouterSettings


async def prove_pair(
    config: Config,
    endpoints: Endpoints,
    prefill: Endpoint,
    decode: Endpoint,
    *,
    limits: TurnLimits,
    listen: Listener,
) -> VerifyReport:
    """The two-turn proof of one pair.

    Raises:
        PdctlError: as `verify`.
    """
    settings = RouterSettings(
        prefill=(prefill.url,),
        decode=(decode.url,),
        port=0,
        ttl=choices.router_ttl(config),
        threshold=config.kv.recompute_threshold,
        limits=config.router.limits,
        deployment=f"{config.name}-accept",
    )
    async with serving(Router(settings, key=endpoints.engine_key)) as url:
        alone = replace(
            endpoints,
            engines=(prefill, decode),
            router=Endpoint("router-0", "router", "localhost", url),
            router_key=None,
        )
        options = VerifyOptions(chat=False, ready_s=60.0, limits=limits)
        return await verify(alone, options, listen=listen)
