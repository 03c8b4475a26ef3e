"""What the commands do about EC2: look, plan, make, wait for SSH, end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pdctl.base.awscall import AwsCall
from pdctl.base.awsfacts import AwsFacts
from pdctl.base.command import command
from pdctl.base.errors import PdctlError, PermissionDeniedError, TemporaryError, UnreachableError
from pdctl.base.events import Listener, Note, StepDone, StepStarted, ignore
from pdctl.base.exits import ExitCode
from pdctl.config.model import Config, Ec2Target
from pdctl.deploy import reach
from pdctl.deploy.ec2things import Clock, until
from pdctl.deploy.provision import Order, provision
from pdctl.deploy.release import Released, release
from pdctl.deploy.world import World
from pdctl.observe.aws import facts_of, making_query_of, want_of
from pdctl.plan import ec2calls
from pdctl.plan.ec2 import BLOCK_MARGIN_S, CloudPlan, plan_cloud
from pdctl.plan.ec2rules import CHANGED, Refusal, needed, refusals, told_of, unknown
from pdctl.state.cloud import Cloud, CloudStore
from pdctl.targets.ec2 import Ec2, Told
from pdctl.targets.ec2_read import Clients, read_ec2

SSH_LIMIT_S = 600.0
_REFUSED_FOR_S = 120.0
"""So long a host that starts may refuse a login: its user gets the key a moment after sshd runs."""
_EFA_LOOKS, _EFA_PAUSE_S = 4, 5.0
_LIMIT_S = 20.0

NOT_RUN = (
    "no part of pdctl's EC2 path was ever run on real EC2, EFA or GPUs: its requests are checked "
    "against AWS's service model, a rule book and a stand-in only (docs/ec2.md)"
)
"""What `plan` and `up` say until there is an acceptance bundle for these versions."""


class RefusedPlanError(PdctlError):
    """EC2 would refuse what the file asks for; nothing was made."""

    exit_code = ExitCode.CONFIG


@dataclass(frozen=True)
class Looked:
    """A deployment on EC2 before anything is made.

    Attributes:
        unknown: what could not be asked, and why.
        asked: the calls that this look made.
        calls: what `up` would ask for, in order; ids of what is not there yet are not in it.
        refused: by permission, calls that EC2 says it would refuse; None when not tried.
        cloud: the record, when there is one.
        needed: of what is unknown, what no host can be made without.
    """

    plan: CloudPlan
    facts: AwsFacts
    refusals: tuple[Refusal, ...]
    unknown: tuple[str, ...]
    calls: tuple[AwsCall, ...]
    cloud: Cloud | None
    refused: Mapping[str, str] | None = None
    needed: tuple[str, ...] = ()
    asked: tuple[AwsCall, ...] = ()

    @property
    def made(self) -> bool:
        """The hosts are there, as far as the record says."""
        return self.cloud is not None and self.cloud.phase == "ready" and bool(self.cloud.hosts)


def look(
    config: Config, *, now: float, dry_run: bool = True, clients: Clients | None = None
) -> Looked:
    """Ask EC2 what there is and judge it. Changes nothing; what cannot be asked is said.

    Args:
        dry_run: also ask EC2 whether it would do it (`DryRun`), which proves permissions.
    """
    target, want = config.target, want_of(config)
    assert isinstance(target, Ec2Target)
    assert want is not None
    answers = read_ec2(
        making_query_of(want, target), target.region, target.profile, clients=clients
    )
    facts = facts_of(want, answers)
    plan = plan_cloud(config, facts)
    cloud = CloudStore(config.name).load()
    calls = tuple(ec2calls.calls(plan, router_port=config.router.port, recorded=cloud is not None))
    asked = [replace(each, why=told_of(each.why)) for each in answers.calls]
    refused = None
    if dry_run and facts.error is None:
        room = Ec2(target.region, target.profile, clients=clients, told=asked.append)
        refused = _tried(room, calls)
    return Looked(
        plan=plan,
        facts=facts,
        refusals=refusals(plan, facts, now=now),
        unknown=unknown(facts),
        needed=needed(plan, facts),
        calls=calls,
        cloud=cloud,
        refused=refused,
        asked=tuple(asked),
    )


_DRY = {
    "ec2:CreateSecurityGroup": "create_security_group",
    "ec2:ImportKeyPair": "import_key_pair",
    "ec2:RunInstances": "run_instances",
    "ec2:AllocateAddress": "allocate_address",
}
_NO_PERMISSION = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")


def _tried(room: Ec2, calls: tuple[AwsCall, ...]) -> dict[str, str]:
    """Permissions that are missing, by action. Other refusals come of things not made yet."""
    found: dict[str, str] = {}
    for call in calls:
        operation = _DRY.get(call.action)
        if operation is None or call.action in found:
            continue
        error = room.would_refuse(operation, **call.arguments)
        if error is not None and error.code in _NO_PERMISSION:
            found[call.action] = error.message
    return found


def require_possible(looked: Looked) -> None:
    """Nothing is asked of EC2 that it would refuse.

    Raises:
        PdctlError: EC2 cannot be asked, a permission is missing, a rule is broken, or what has to
            be known could not be asked.
    """
    region = looked.plan.target.region
    if looked.facts.error is not None:
        raise cannot_ask(looked)
    if looked.refused:
        raise PermissionDeniedError(
            "EC2 would refuse it; nothing was made",
            where=region,
            detail=[*looked.refused.values()],
            hints=["docs/ec2.md has the policy that pdctl needs"],
        )
    _refuse(looked, looked.refusals)
    if looked.needed:
        denied = any("no permission" in each for each in looked.needed)
        raise (PermissionDeniedError if denied else TemporaryError)(
            "what no host can be made without could not be asked; nothing was made",
            where=region,
            detail=looked.needed,
            hints=["docs/ec2.md has the policy that pdctl needs"] if denied else ["run it again"],
        )


def _refuse(looked: Looked, broken: Sequence[Refusal]) -> None:
    if broken:
        raise RefusedPlanError(
            "EC2 would refuse it, or it could not work; nothing was made",
            where=looked.plan.target.region,
            detail=[str(each) for each in broken],
        )


def cannot_ask(looked: Looked) -> PdctlError:
    """No login, or no way to AWS."""
    error = looked.facts.error or ""
    login = any(word in error for word in ("credentials", "login", "profile", "Profile"))
    return (PermissionDeniedError if login else UnreachableError)(
        f"EC2 cannot be asked: {error}",
        where=looked.plan.target.region,
        hints=["`aws sts get-caller-identity` shows who you are to AWS"],
    )


def make(
    config: Config,
    looked: Looked,
    *,
    clock: Clock,
    listen: Listener = ignore,
    told: Told | None = None,
    clients: Clients | None = None,
    on_launch: Callable[[], None] = lambda: None,
) -> Cloud:
    """Make the hosts that are missing; `on_launch` is called when an instance was made."""
    if looked.plan.missing or not looked.made:
        require_possible(looked)
    elif looked.facts.error is not None:
        raise cannot_ask(looked)
    _refuse(looked, [each for each in looked.refusals if each.rule == CHANGED])
    room = room_of(looked.plan.target, told=told, clients=clients)
    order = Order(config, looked.plan, looked.facts)
    store = CloudStore(config.name)
    return provision(room, store, order, clock=clock, listen=listen, on_launch=on_launch)


def room_of(target: Ec2Target, *, told: Told | None = None, clients: Clients | None = None) -> Ec2:
    """EC2 as the file says."""
    return Ec2(target.region, target.profile, clients=clients, told=told)


# --- hosts that start ----------------------------------------------------------------------------


def arrive(world: World, cloud: Cloud, looked: Looked, *, clock: Clock) -> None:
    """Wait until all hosts let us in, then see that EFA and the switch that ends them are there.

    Raises:
        TemporaryError: a host did not let us in within the limit.
    """
    began = clock.monotonic()
    world.listen(StepStarted("ssh", "log in to the hosts"))

    def look() -> bool | None:
        try:
            reach.connect_all(world)
        except UnreachableError:
            return None
        except PermissionDeniedError:
            if clock.monotonic() - began > _REFUSED_FOR_S:
                raise
            return None
        return True

    what = f"{len(world.hosts)} hosts to answer over SSH"
    try:
        until(clock, look, step="ssh", what=what, limit=SSH_LIMIT_S, listen=world.listen)
    except TemporaryError as error:
        raise TemporaryError(
            error.message,
            hints=[
                *error.hints,
                "see that `network.allow_from` has your address, or set `access.jump`",
            ],
        ) from error
    world.listen(StepDone("ssh", "log in to the hosts", clock.monotonic() - began))
    _see_efa(world, looked, clock)
    _see_switch(world, cloud)


def _see_efa(world: World, looked: Looked, clock: Clock) -> None:
    """EFA devices appear late on some types; a look or two more costs nothing."""
    for planned in looked.plan.hosts:
        wanted = sum(kind != "interface" for _, _, kind in planned.interfaces)
        host = world.hosts.get(planned.name)
        if not wanted or host is None:
            continue
        count = 0
        for _ in range(_EFA_LOOKS):
            listing = host.run(
                command("sh", "-c", "ls -d /sys/class/infiniband/rdmap* 2>/dev/null | wc -l"),
                timeout=_LIMIT_S,
            )
            count = int(listing.stdout.strip() or 0)
            if count >= wanted:
                break
            clock.sleep(_EFA_PAUSE_S)
        if count < wanted:
            world.listen(
                Note(
                    f"{planned.name} shows {count} EFA devices, expected {wanted}; "
                    "`pdctl doctor` says more",
                    warning=True,
                )
            )


def _see_switch(world: World, cloud: Cloud) -> None:
    """A switch that is not there must not be relied on."""
    if cloud.max_hours is None and cloud.ends_at is None:
        return
    for made in cloud.made:
        host = world.hosts.get(made.name)
        if host is None:
            continue
        active = host.run(
            command("sh", "-c", "systemctl is-active pdctl-end.timer 2>&1 || true"),
            timeout=_LIMIT_S,
        ).stdout.strip()
        if active != "active":
            world.listen(
                Note(
                    f"{made.name} will NOT end by itself: its timer `pdctl-end.timer` is "
                    f"{active or 'not there'}; end it with `pdctl down`",
                    warning=True,
                )
            )


# --- the end -------------------------------------------------------------------------------------


def end(
    name: str,
    region: str,
    profile: str | None,
    *,
    clock: Clock,
    listen: Listener = ignore,
    told: Told | None = None,
    clients: Clients | None = None,
) -> Released:
    """End everything that pdctl made for a deployment, with or without its record."""
    room = Ec2(region, profile, clients=clients, told=told)
    store = CloudStore(name)
    return release(room, store, store.load(), clock=clock, listen=listen)


def costs(cloud: Cloud, *, now: float) -> str:
    """What the hosts cost, so far, and when that ends by itself; in a sentence."""
    made = cloud.made
    started = [each.launched_at for each in made if each.launched_at is not None]
    hours = max(0.0, now - min(started)) / 3600 if started else 0.0
    count = f"{len(made)} instance{'s' * (len(made) != 1)} on EC2"
    if cloud.hourly_usd is None:
        price = "at a price that pdctl does not know"
    else:
        price = (
            f"about ${cloud.hourly_usd:.2f} an hour, ${cloud.hourly_usd * 24:.0f} a day; "
            f"${cloud.hourly_usd * hours:.2f} since the first one started {hours:.1f} h ago"
        )
    left = _left(cloud, now, min(started, default=now))
    return f"{count}: {price}; {left}"


def _left(cloud: Cloud, now: float, started: float) -> str:
    ends = [each - BLOCK_MARGIN_S for each in (cloud.ends_at,) if each is not None]
    if cloud.max_hours is not None:
        ends.append(started + cloud.max_hours * 3600)
    if not ends:
        return "nothing ends them but `pdctl down`"
    left = (min(ends) - now) / 3600
    return f"they end by themselves in {left:.1f} h" if left > 0 else "they should have ended"
