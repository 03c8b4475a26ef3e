"""The end of `up`: a pair that is healthy is not yet a pair that reuses."""

import asyncio

from pdctl.base.errors import BadAnswerError
from pdctl.config.model import Config
from pdctl.deploy.runner import Prove, Proven
from pdctl.deploy.world import World
from pdctl.observe.proof import VerifyReport
from pdctl.render.model import Secrets
from pdctl.state.model import DeploymentState


def two_turns(config: Config, secrets: Secrets, world: World) -> Prove:
    """The two-turn proof as `up` runs it: without the ordinary chat that `verify` adds."""

    def prove(state: DeploymentState) -> Proven:
        from pdctl.observe.endpoints import best_key, endpoints_of
        from pdctl.observe.verify import VerifyOptions, verify

        endpoints = endpoints_of(
            config,
            state.processes.values(),
            engine_key=secrets.engine_key.value if secrets.engine_key else None,
            router_key=best_key(secrets.client_keys.value) if secrets.client_keys else None,
            near=world.near,
        )
        report = asyncio.run(verify(endpoints, VerifyOptions(chat=False), listen=world.listen))
        if not report.ok:
            raise not_proven(config.name, report)
        return Proven(report.facts().reused_tokens or 0, report)

    return prove


def not_proven(name: str, report: VerifyReport) -> BadAnswerError:
    """The failed proof as an error; everything is left running, so that it can be looked at."""
    return BadAnswerError(
        f"everything of `{name}` runs, but reuse is not proven: {report.reason}",
        where=report.side,
        detail=report.proved,
        hints=[*report.hints, "`pdctl verify` runs the proof again"],
    )
