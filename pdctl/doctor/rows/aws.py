"""Checks of what AWS says of the deployment's instances, their types, capacity and network."""

from collections.abc import Iterator

from pdctl.base.awsfacts import AwsFacts, AwsInstance, AwsReservation
from pdctl.base.durations import format_duration
from pdctl.base.facts import PairFacts
from pdctl.base.instances import rdma_read, readers
from pdctl.doctor.rows import aws_network
from pdctl.doctor.rows.aws_view import NONE_YET, not_asked, of_aws, of_efa, of_engines
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.observe.aws import quota_of

_HOUR = 3600.0
_BLOCK_ENDS_BEFORE = 0.5 * _HOUR  # EC2 begins to end a block's instances that long before its end
_END_NEAR = 6 * _HOUR
_END_AT_HAND = 1 * _HOUR
_LOGIN = Fix(
    "log in to AWS, name the profile in `target.profile`, and see who you are",
    ("aws sts get-caller-identity",),
)


def _access(facts: PairFacts, _: str) -> Verdict:
    aws = facts.aws
    if aws is None:
        return skipped(not_asked(facts))
    if aws.error is not None:
        return failed(aws.error)
    return passed(f"EC2 in {aws.want.region} answers")


# ---- types ----------------------------------------------------------------------------------


def _types(aws: AwsFacts) -> list[str]:
    """The engines' instance types: as they run, else as configured."""
    found = [each.instance_type for each in aws.engines]
    return sorted(set(found or [each.instance_type for each in aws.want.engines]))


def _efa(aws: AwsFacts, _: PairFacts) -> Verdict:
    unknown = [name for name in _types(aws) if aws.type_of(name) is None]
    if unknown:
        return failed(f"{aws.want.region} knows no instance type {', '.join(unknown)}")
    without = [name for name in _types(aws) if not aws.type_of(name).efa]  # type: ignore[union-attr]
    if without:
        return failed(f"{', '.join(without)} has no EFA, expected such as {readers()[-1]}")
    lines = [f"{k.name}: {k.max_efa} EFA interfaces" for n in _types(aws) if (k := aws.type_of(n))]
    return passed(*lines)


def _rdma(aws: AwsFacts, _: PairFacts) -> Verdict:
    answers = {name: rdma_read(name) for name in _types(aws)}
    unable = [name for name, reads in answers.items() if reads is False]
    if unable:
        return failed(f"{', '.join(unable)}: its EFA does not read by RDMA")
    unknown = [name for name, reads in answers.items() if reads is None]
    if unknown:
        return skipped(
            f"{', '.join(unknown)} is not in the list of types, and EC2 does not say; the hosts "
            "do (`host.efa.rdma_read`)"
        )
    return passed(f"{', '.join(answers)}, by the list of types")


def _offered(aws: AwsFacts, _: PairFacts) -> Verdict:
    if aws.instances:
        return skipped("the instances exist")
    zones = set(aws.want.zones)
    bad: list[str] = []
    fine: list[str] = []
    for name in sorted({each.instance_type for each in aws.want.roles}):
        offers = (aws.offered or {}).get(name, ())
        found = sorted(zones & set(offers)) if zones else list(offers)
        where = ", ".join(offers) or "nowhere"
        line = f"{name} is offered in {where}"
        (fine if found else bad).append(line)
    if bad:
        return failed(*bad, f"expected: {' or '.join(aws.want.zones) or aws.want.region}")
    return passed(*fine)


# ---- instances ------------------------------------------------------------------------------


def _running(aws: AwsFacts, _: PairFacts) -> Verdict:
    if not aws.instances:
        missing = [id for each in aws.want.roles for id in each.ids]
        return failed(f"there is no {', '.join(missing)}") if missing else skipped(NONE_YET)
    bad: list[str] = []
    problem = aws.problems.get("statuses")
    odd = [f"the status checks are not known: {problem}"] if problem else []
    odd += [
        f"{found} of {each.count} hosts of {each.role} exist"
        for each in aws.want.roles
        if (found := sum(i.role == each.role for i in aws.instances)) < each.count
    ]
    for each in aws.instances:
        bad += [f"{each.name} ({each.id}): {text}" for text in _unwell(each)]
        odd += [f"{each.name} ({each.id}): event {event} is scheduled" for event in each.events]
        if "initializing" in (each.system_status, each.instance_status):
            odd.append(f"{each.name} ({each.id}): status checks are not done yet")
    if bad:
        return failed(*bad, *odd)
    return warned(*odd) if odd else passed(f"{len(aws.instances)} instances run, checks are ok")


def _unwell(instance: AwsInstance) -> Iterator[str]:
    if instance.state != "running":
        yield f"it is {instance.state}, expected running"
        return
    for name, status in (
        ("system", instance.system_status),
        ("instance", instance.instance_status),
    ):
        if status in ("impaired", "insufficient-data"):
            yield f"its {name} status check is {status}, expected ok"


def _metadata(aws: AwsFacts, _: PairFacts) -> Verdict:
    known = [each for each in aws.instances or () if each.tokens is not None]
    if not known:
        return skipped(NONE_YET)
    loose = [each for each in known if each.tokens != "required"]
    if not loose:
        return passed(f"IMDSv2 only, on {len(known)} instances")
    return warned(
        *(f"{each.name}: HttpTokens is {each.tokens}, expected required" for each in loose),
        fix=Fix(
            "require IMDSv2",
            tuple(
                f"aws ec2 modify-instance-metadata-options --region {aws.want.region} "
                f"--instance-id {each.id} --http-tokens required"
                for each in loose
            ),
        ),
    )


def _shutdown(aws: AwsFacts, _: PairFacts) -> Verdict:
    if aws.want.max_hours is None:
        return skipped("`target.capacity.max_hours` is not set: the hosts do not end by themselves")
    wrong: list[str] = []
    commands: list[str] = []
    edit = f"aws ec2 modify-instance-attribute --region {aws.want.region} --instance-id"
    known = [each for each in aws.instances or () if each.shutdown is not None]
    for each in known:
        if each.shutdown != "terminate":
            wrong.append(f"{each.name}: a shutdown would {each.shutdown} it, expected terminate")
            commands.append(f"{edit} {each.id} --instance-initiated-shutdown-behavior terminate")
    for each in aws.instances or ():
        if each.protected:
            wrong.append(f"{each.name} is protected against termination")
            commands.append(f"{edit} {each.id} --no-disable-api-termination")
    if wrong:
        return failed(*wrong, fix=Fix("let a shutdown end the instance", tuple(commands)))
    return passed(f"{len(known)} instances end at shutdown") if known else skipped(_attributes(aws))


def _attributes(aws: AwsFacts) -> str:
    return aws.problems.get("attributes") or NONE_YET


def _placement(aws: AwsFacts, _: PairFacts) -> Verdict:
    names = {each.name: each.placement_group for each in aws.engines}
    used = {name for name in names.values() if name}
    if not used:
        return passed("no placement group, and none is needed")
    strategies = {each.name: each.strategy for each in aws.placement_groups or ()}
    apart = [name for name in sorted(used) if strategies.get(name) in ("spread", "partition")]
    lines = [f"{host}: {group or 'no placement group'}" for host, group in names.items()]
    if apart:
        return warned(*lines, f"{', '.join(apart)} keeps instances apart")
    if len(set(names.values())) > 1:
        return warned(*lines)
    group = next(iter(used))
    why = aws.problems.get("placement_groups") or "strategy not known"
    return passed(f"all in {group} ({strategies.get(group) or why})")


# ---- capacity -------------------------------------------------------------------------------


def _reservation(aws: AwsFacts, _: PairFacts) -> Verdict:
    want, found = aws.want, aws.reservation
    if want.reservation is None:
        return skipped("no reservation is configured")
    if found is None:
        # The id may be wrong, or of another region; or asking is not allowed.
        problem = aws.problems.get("reservation") or f"there is no {want.reservation}"
        missing = "NotFound" in problem or "Malformed" in problem or "there is no" in problem
        return failed(problem) if missing else skipped(problem)
    wrong = list(_misfit(aws, found))
    line = (
        f"{found.id}: {found.available} of {found.total} {found.instance_type} are free in "
        f"{found.zone}, {found.state}"
    )
    return failed(*wrong, line) if wrong else passed(line)


def _misfit(aws: AwsFacts, found: AwsReservation) -> Iterator[str]:
    want = aws.want
    if found.state != "active":
        yield f"it is {found.state}, expected active"
    block = found.kind == "capacity-block"
    if block != (want.capacity == "capacity-block"):
        kind = "a capacity block" if block else "an on-demand reservation"
        right = "capacity-block" if block else "odcr"
        yield f"it is {kind}: `target.capacity.kind` is {want.capacity}, expected {right}"
    types = {each.instance_type for each in want.engines}
    if found.instance_type not in types:
        yield f"it is for {found.instance_type}, expected {' or '.join(sorted(types))}"
    if want.zones and found.zone is not None and found.zone not in want.zones:
        yield f"it is in {found.zone}, expected {' or '.join(want.zones)}"
    if aws.instances is None:
        return  # who runs in it is not known
    inside = [each for each in aws.engines if each.reservation == found.id]
    outside = [each.name for each in aws.engines if each.reservation != found.id and each.role]
    if outside:
        yield f"{', '.join(outside)} does not run in it"
    count = sum(each.count for each in want.engines if each.instance_type == found.instance_type)
    needed = count - len(inside) - len(outside)
    if found.available is not None and needed > found.available:
        yield f"{needed} more are needed, {found.available} are free"


def _end(aws: AwsFacts, facts: PairFacts) -> Verdict:
    found = aws.reservation
    if found is None or found.ends_at is None:
        return skipped("no reservation with an end is used")
    block = found.kind == "capacity-block"
    left = found.ends_at - facts.taken_at - (_BLOCK_ENDS_BEFORE if block else 0)
    what = "EC2 begins to end its instances" if block else "the reservation ends"
    mend = _prolong(aws, found)
    if left <= 0:
        return failed(f"{found.id}: {what}, or did", fix=mend)
    line = f"{found.id}: {what} in {format_duration(round(left / 60) * 60.0)}"
    if left < _END_AT_HAND:
        return failed(line, fix=mend)
    most = aws.want.max_hours
    if left < _END_NEAR or (not aws.instances and most is not None and left < most * _HOUR):
        wants = f"`max_hours` is {most:g}" if most is not None else "that is soon"
        return warned(line, wants, fix=mend)
    return passed(line)


def _prolong(aws: AwsFacts, found: AwsReservation) -> Fix:
    where = f"--region {aws.want.region} --capacity-reservation-id {found.id}"
    if found.kind == "capacity-block":
        return Fix(
            "see whether the block can be extended, which costs money, or move before it ends",
            (
                f"aws ec2 describe-capacity-block-extension-offerings {where} "
                "--capacity-block-extension-duration-hours 24",
            ),
        )
    return Fix(
        "let it end later, or never",
        (f"aws ec2 modify-capacity-reservation {where} --end-date-type unlimited",),
    )


def _quota(aws: AwsFacts, _: PairFacts) -> Verdict:
    if aws.want.capacity == "capacity-block":
        return skipped("capacity blocks do not count against it")
    if aws.instances:
        return skipped("the instances exist")
    limits = {each.code: each.vcpus for each in aws.quotas or ()}
    needed: dict[str, int] = {}
    for each in aws.want.engines:
        kind, code = aws.type_of(each.instance_type), quota_of(aws.want, each.instance_type)
        if code in limits and kind is not None and kind.vcpus is not None:
            needed[code] = needed.get(code, 0) + kind.vcpus * each.count
    if not needed:
        return skipped("the quota of these types is not known")
    lines = {c: f"quota {c} allows {limits[c]:g} vCPUs, expected {n}" for c, n in needed.items()}
    low = [code for code, count in needed.items() if limits[code] < count]
    if not low:
        return passed(*lines.values())
    return failed(*(lines[code] for code in low), fix=_ask_for(aws, low[0], needed[low[0]]))


def _ask_for(aws: AwsFacts, code: str, vcpus: int) -> Fix:
    return Fix(
        "ask AWS for more; it takes days",
        (
            f"aws service-quotas request-service-quota-increase --region {aws.want.region} "
            f"--service-code ec2 --quota-code {code} --desired-value {vcpus}",
        ),
    )


CHECKS: tuple[Check, ...] = (
    Check(
        id="aws.access",
        title="AWS can be asked",
        scope="aws",
        severity="block",
        judge=_access,
        meaning="Nothing on EC2 can be looked at or changed.",
        fix=_LOGIN,
    ),
    Check(
        id="aws.type.efa",
        title="the engines' instance type has EFA",
        scope="aws",
        severity="block",
        judge=of_efa(_efa, "types", named="types"),
        meaning="NIXL's LIBFABRIC backend has nothing to work with.",
        fix=Fix("set `target.instance_type` to one of: " + ", ".join(readers())),
        needs=("aws.access",),
    ),
    Check(
        id="aws.type.rdma_read",
        title="the EFA of the engines' instance type reads by RDMA",
        scope="aws",
        severity="block",
        judge=of_efa(_rdma),
        meaning="KV is pulled by RDMA reads, which Nitro cards have from version 4 on, and those "
        "of p4d and p4de.",
        fix=Fix("set `target.instance_type` to one of: " + ", ".join(readers())),
        needs=("aws.access",),
    ),
    Check(
        id="aws.type.offered",
        title="the instance types are offered where they are to be made",
        scope="aws",
        severity="block",
        judge=of_aws(_offered, "offered"),
        meaning="EC2 refuses to make them there.",
        fix=Fix("choose a zone that offers the type (`target.zones`), or another region"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.instances",
        title="the instances run, and EC2's status checks are ok",
        scope="aws",
        severity="block",
        judge=of_aws(_running, "instances", named="instances"),
        meaning="A host that does not run serves nothing; one with a failed check or a scheduled "
        "event may go away.",
        fix=Fix("start it, or make another one", ("pdctl up",)),
        needs=("aws.access",),
    ),
    *aws_network.CHECKS,
    Check(
        id="aws.reservation",
        title="the capacity reservation is active and fits",
        scope="aws",
        severity="block",
        judge=of_aws(_reservation),
        meaning="EC2 refuses to make the instances, or makes them outside of what is paid for.",
        fix=Fix("mend `target.capacity`"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.reservation.end",
        title="the capacity does not end soon",
        scope="aws",
        severity="degrade",
        judge=of_aws(_end),
        meaning="A capacity block cannot be prolonged by itself: EC2 ends its instances from half "
        "an hour before its end on, whatever runs there.",
        fix=Fix("extend it, or move before it ends"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.quota",
        title="the account's quota allows the engines' instances",
        scope="aws",
        severity="block",
        judge=of_aws(_quota, "quotas", "types"),
        meaning="EC2 refuses with VcpuLimitExceeded. What already runs counts too, and is not "
        "looked at here.",
        fix=Fix("ask AWS for more"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.placement",
        title="placement groups do not keep the engines apart",
        scope="aws",
        severity="note",
        judge=of_engines(_placement),
        meaning="Engines of one deployment should be near each other. EFA needs no placement "
        "group, and one that the reservation was not made in leads to "
        "InsufficientInstanceCapacity.",
        fix=Fix("make the hosts in one `cluster` group, or in none"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.imds",
        title="the instances answer IMDSv2 only",
        scope="aws",
        severity="degrade",
        judge=of_aws(_metadata, "instances"),
        meaning="With the old way, whoever makes a process there fetch a URL gets the instance's "
        "credentials.",
        fix=Fix("require IMDSv2"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.shutdown",
        title="hosts that are to end by themselves really end",
        scope="aws",
        severity="degrade",
        judge=of_aws(_shutdown, "instances"),
        meaning="`max_hours` ends a host by a shutdown from inside. If that only stops it, its "
        "volumes cost on, and a reservation stays taken.",
        fix=Fix("let a shutdown end the instance"),
        needs=("aws.access",),
    ),
)
