"""Which tasks a deployment's hosts need."""

from collections.abc import Iterator
from pathlib import PurePosixPath

from pdctl.config.model import Config, Ec2Target, SshTarget
from pdctl.deploy.prepare.disks import nvme_task
from pdctl.deploy.prepare.efa import efa_task
from pdctl.deploy.prepare.memory import huge_pages_task, limits_task
from pdctl.deploy.prepare.model import model_task
from pdctl.deploy.prepare.packages import HWLOC, MDADM, NUMACTL, Need, packages_task, venv_for
from pdctl.deploy.prepare.router import pdctl_task
from pdctl.deploy.prepare.task import Task
from pdctl.engine import choices
from pdctl.render.model import Deployment, Place, Secrets


def tasks_of(
    config: Config, place: Place, deployment: Deployment, secrets: Secrets
) -> tuple[Task, ...]:
    """In the order they are done; none for this machine, where all is up to its user."""
    if not isinstance(config.target, SshTarget | Ec2Target):
        return ()
    return tuple(_tasks(config, config.target, place, deployment, secrets))


def _tasks(
    config: Config,
    target: SshTarget | Ec2Target,
    place: Place,
    deployment: Deployment,
    secrets: Secrets,
) -> Iterator[Task]:
    engines, routers = _hosts(deployment, router=False), _hosts(deployment, router=True)
    sudo = target.access.sudo
    needs = {
        name: (
            *(_of_engines(config, target, deployment) if name in engines else ()),
            *(_of_routers(config, place) if name in routers else ()),
        )
        for name in engines + routers
    }
    if needs := {name: each for name, each in needs.items() if each}:
        yield packages_task(needs, sudo=sudo)
    if target.efa_installer is not None:
        yield efa_task(engines, target.efa_installer, target.efa_installer_sha256, sudo=sudo)
    if target.nvme is not None:
        yield nvme_task(engines, PurePosixPath(target.nvme), sudo=sudo)
    if "LIBFABRIC" in choices.backends(config):
        yield limits_task(engines, sudo=sudo)
        yield huge_pages_task(engines, sudo=sudo)
    if config.router.kind == "pdctl":
        redis = config.router.store != "memory"
        yield pdctl_task(routers, PurePosixPath(place.pdctl_python), redis=redis)
    if (task := model_task(config, place, engines, secrets.hf_token)) is not None:
        yield task


def _hosts(deployment: Deployment, *, router: bool) -> tuple[str, ...]:
    found = (s.host for s in deployment.processes if (s.role == "router") == router)
    return tuple(dict.fromkeys(found))


def _of_engines(
    config: Config, target: SshTarget | Ec2Target, deployment: Deployment
) -> Iterator[Need]:
    if deployment.recipe is not None:
        yield venv_for(str(deployment.recipe.layout.python))
    if "LIBFABRIC" in choices.backends(config):
        yield HWLOC
        yield NUMACTL
    if target.nvme is not None:
        yield MDADM


def _of_routers(config: Config, place: Place) -> Iterator[Need]:
    if config.router.kind == "pdctl":
        yield venv_for(place.pdctl_python)
