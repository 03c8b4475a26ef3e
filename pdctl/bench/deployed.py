"""Restarts that a leg needs: prefill's own prefix cache cannot be switched while it runs."""

from pathlib import Path

from pdctl.base.errors import UsageError
from pdctl.base.events import Listener
from pdctl.config.model import Config, Ec2Target, LocalTarget, SshTarget
from pdctl.deploy import local, reach, runner
from pdctl.deploy.survey import survey
from pdctl.state.lock import hold
from pdctl.state.model import DeploymentState
from pdctl.state.store import StateStore


def with_prefix_caching(config: Config, value: bool | None) -> Config:
    """The configuration with prefill's prefix cache on or off; None: as it is."""
    if value is None:
        return config
    prefill = config.prefill.model_copy(update={"prefix_caching": value})
    return config.model_copy(update={"prefill": prefill})


def require_restarts(config: Config) -> None:
    """Refuse to restart what pdctl did not start.

    Raises:
        UsageError: something else runs the engines.
    """
    if not isinstance(config.target, LocalTarget | SshTarget | Ec2Target):
        raise UsageError(
            "prefill's prefix cache cannot be switched: pdctl does not run these engines",
            where="key `target.kind`",
            expected="`--prefix-caching as-is`, or engines that `pdctl up` started",
        )


def bring_up(config: Config, file: Path, listen: Listener) -> DeploymentState:
    """What `pdctl up --no-verify` does: restart what is not as configured, and nothing else.

    Raises:
        PdctlError: as `pdctl up`.
    """
    wanted = local.wanted_of(config, file, local.read_secrets(config), verify=False)
    store = StateStore(config.name)
    world = reach.world_of(config, listen)
    try:
        reach.connect_all(world)
        with hold(config.name, "pdctl bench"):
            found = survey(world, wanted, store)
            return runner.up(world, wanted, store, found, prove=_no_proof).state
    finally:
        world.close()


def _no_proof(state: DeploymentState) -> runner.Proven:
    raise AssertionError("nothing is proven here: the bench itself runs the proof")
