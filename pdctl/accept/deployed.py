"""What an acceptance does to a deployment: restart a process, and see it prove itself."""

from pathlib import Path

from pdctl.base.errors import BadAnswerError
from pdctl.base.events import Listener
from pdctl.config.model import Config
from pdctl.deploy import local, proof, reach, runner
from pdctl.deploy.survey import survey
from pdctl.observe.proof import VerifyReport
from pdctl.state.lock import hold
from pdctl.state.store import StateStore


def restart(config: Config, file: Path, name: str, listen: Listener) -> VerifyReport:
    """What `pdctl restart` does with one process; gives the proof that it ends with.

    Raises:
        PdctlError: it does not come back, or reuse is not proven.
    """
    secrets = local.read_secrets(config)
    wanted = local.wanted_of(config, file, secrets)
    store = StateStore(config.name)
    world = reach.world_of(config, listen)
    try:
        reach.connect_all(world)
        with hold(config.name, "pdctl accept"):
            found = survey(world, wanted, store, restart=[name])
            prove = proof.two_turns(config, secrets, world)
            outcome = runner.up(world, wanted, store, found, prove=prove)
    finally:
        world.close()
    report = outcome.proven.report if outcome.proven else None
    if not isinstance(report, VerifyReport):
        raise BadAnswerError(f"`{name}` was restarted and nothing was proven", where=config.name)
    return report
