"""What `doctor` is to look at, from a configuration and what was recorded of its deployment."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace

from pdctl.base.configfacts import KEY_FILES, STATE, ConfigFacts, ConfigProblem
from pdctl.base.errors import PdctlError
from pdctl.base.hostfacts import HostWant
from pdctl.base.keyfile import key_lines
from pdctl.base.process import ROLES, ProcessSpec
from pdctl.config.load import Loaded
from pdctl.config.model import Config, Ec2Target, ExternalTarget, LocalTarget, SshTarget
from pdctl.deploy.ec2hosts import ec2_hosts, with_addresses
from pdctl.deploy.local import read_secrets
from pdctl.deploy.reach import ssh_hosts
from pdctl.deploy.world import own_url
from pdctl.engine import choices
from pdctl.engine.models import built_in_dir
from pdctl.observe.aws import want_of
from pdctl.observe.endpoints import Endpoint, Endpoints, Served, best_key
from pdctl.observe.examine import ROUTER, Case, Model
from pdctl.observe.host import wants_of
from pdctl.observe.settings import facts_of
from pdctl.plan.chosen import kept
from pdctl.render.deployment import render
from pdctl.render.model import SHOWN, Deployment, Place, Secrets
from pdctl.render.place import place_of
from pdctl.render.spots import THIS_MACHINE
from pdctl.state.model import DeploymentState, ProcessRecord
from pdctl.state.store import StateStore
from pdctl.targets.base import Host

NEVER = "it was never started; `pdctl up` starts it"


def case_without_file(facts: ConfigFacts, hosts: Mapping[str, Host]) -> Case:
    """Only this machine: there is no configuration that could say more.

    Args:
        hosts: this machine.
    """
    return Case(
        name="no deployment",
        config=facts,
        hosts=hosts,
        wants={name: HostWant() for name in hosts},
        not_asked={ROUTER: "no configuration names it"},
    )


def reachable(config: Config, here: Mapping[str, Host]) -> Mapping[str, Host]:
    """The hosts of a deployment that this version can look at; whoever asks closes them.

    Args:
        here: this machine.
    """
    if isinstance(config.target, SshTarget):
        return ssh_hosts(config.target)
    if isinstance(config.target, Ec2Target):
        return ec2_hosts(config)
    return here if isinstance(config.target, LocalTarget) else {}


def case_of(
    loaded: Loaded, hosts: Mapping[str, Host], near: Callable[[Served], str] = own_url
) -> Case:
    """Everything of a deployment.

    Args:
        hosts: those that pdctl can reach, by name; of a local target this machine.
        near: gives the URL at which this machine reaches what was started.
    """
    config = loaded.config
    facts = facts_of(loaded)
    state, facts = _state(config, facts)
    secrets, facts = _secrets(config, facts)
    place = place_of(config)
    deployment = render(config, place, with_addresses(config, SHOWN))
    chosen = with_addresses(config, kept(deployment.processes, state))
    deployment = render(config, place, chosen)
    external = isinstance(config.target, ExternalTarget)
    endpoints = _endpoints(config, deployment, state, secrets, near)
    started = [name for name, r in (state.processes if state else {}).items() if r.ref]
    # Engines of an external target are on hosts that pdctl knows nothing of.
    wants = {} if external else wants_of(config, place, deployment, started=started)
    return Case(
        name=config.name,
        config=facts,
        hosts={name: host for name, host in hosts.items() if name in wants},
        wants=wants,
        endpoints=endpoints,
        routers=_more_routers(state, near),
        state=state,
        not_asked=_not_asked(config, deployment, state, hosts, wants),
        specs={spec.name: spec for spec in deployment.processes},
        model=None if external else _model(config, place, hosts),
        store=None if config.router.store == "memory" else config.router.store,
        aws=want_of(config),
        aws_profile=config.target.profile if isinstance(config.target, Ec2Target) else None,
    )


def _state(config: Config, facts: ConfigFacts) -> tuple[DeploymentState | None, ConfigFacts]:
    try:
        return StateStore(config.name).load(), facts
    except PdctlError as error:
        return None, _with_problem(facts, STATE, error.message)


def _secrets(config: Config, facts: ConfigFacts) -> tuple[Secrets, ConfigFacts]:
    try:
        return read_secrets(config), facts
    except PdctlError as error:
        where = f"{error.message} ({error.where})" if error.where else error.message
        return Secrets(), _with_problem(facts, KEY_FILES, where)


def secret_values(config: Config) -> list[str]:
    """Every key that the configuration's files hold, and the user's token for the hub."""
    try:
        secrets = read_secrets(config)
    except PdctlError:
        secrets = Secrets()
    values = [os.environ.get("HF_TOKEN", "")]
    if secrets.engine_key:
        values.append(secrets.engine_key.value)
    if secrets.client_keys:
        values += [line.key for line in key_lines(secrets.client_keys.value)]
    return [value for value in values if value]


def _with_problem(facts: ConfigFacts, key: str, message: str) -> ConfigFacts:
    return replace(facts, problems=(*facts.problems, ConfigProblem(key, message)))


def _endpoints(
    config: Config,
    deployment: Deployment,
    state: DeploymentState | None,
    secrets: Secrets,
    near: Callable[[Served], str],
) -> Endpoints:
    """Engines and the first router: as started, else as they are to be."""
    records = state.processes if state else {}
    found = [
        _endpoint(records.get(spec.name), spec, near)
        for spec in sorted(deployment.processes, key=lambda s: (ROLES.index(s.role), s.index))
    ]
    engines = [each for each in found if each.role != "router"]
    if isinstance(config.target, ExternalTarget):
        urls = {"prefill": config.target.prefill, "decode": config.target.decode}
        engines = [
            Endpoint(f"{role}-{index}", role, url, url)
            for role in choices.ENGINE_ROLES
            for index, url in enumerate(urls[role])
        ]
    return Endpoints(
        name=config.name,
        engines=tuple(engines),
        router=next((each for each in found if each.role == "router"), None),
        dtype=config.model.dtype,
        bidirectional=config.kv.bidirectional,
        threshold=config.kv.recompute_threshold,
        engine_key=secrets.engine_key.value if secrets.engine_key else None,
        router_key=best_key(secrets.client_keys.value) if secrets.client_keys else None,
    )


def _endpoint(
    record: ProcessRecord | None, spec: ProcessSpec, near: Callable[[Served], str]
) -> Endpoint:
    process: Served = record or spec
    url = near(process) if record else process.url
    known_as = "" if url == process.url else process.url
    return Endpoint(spec.name, spec.role, spec.host, url, known_as)


def _more_routers(
    state: DeploymentState | None, near: Callable[[Served], str]
) -> tuple[Endpoint, ...]:
    records = state.of_role("router") if state else []
    return tuple(Endpoint(r.name, r.role, r.host, near(r)) for r in records[1:] if r.ref)


def _not_asked(
    config: Config,
    deployment: Deployment,
    state: DeploymentState | None,
    hosts: Mapping[str, Host],
    wants: Mapping[str, HostWant],
) -> dict[str, str]:
    kind = config.target.kind
    because = f"pdctl cannot log in to hosts of `target.kind: {kind}` yet"
    if isinstance(config.target, Ec2Target):
        because = "`pdctl up` has not made these hosts yet, or `--offline` asks no other machine"
    if isinstance(config.target, SshTarget):
        because = "`--offline` asks no other machine"
    why = {name: because for name in wants if name not in hosts}
    records = state.processes if state else {}
    for spec in deployment.processes:
        name = ROUTER if spec.role == "router" else spec.name
        if isinstance(config.target, ExternalTarget):
            if not spec.port and spec.name not in records:
                why[name] = "`router.port` is 0, so nobody knows where it listens"
        elif spec.host in why:
            why[name] = why[spec.host]
        elif spec.name not in records or records[spec.name].ref is None:
            why.setdefault(name, NEVER)
    return why


def _model(config: Config, place: Place, hosts: Mapping[str, Host]) -> Model:
    if choices.is_built_in(config):
        return Model(str(built_in_dir(place.cache, config.model.id)))
    hub = str(place.hub) if place.hub else None
    if place.hub and (downloaded := choices.source_path(config, place.hub)):
        return Model(str(downloaded))
    if isinstance(config.target, LocalTarget) and THIS_MACHINE in hosts:
        hub = hosts[THIS_MACHINE].inherited_env().get("HF_HOME")
    return Model(config.model.id, config.model.revision, hub)
