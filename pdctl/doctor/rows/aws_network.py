"""Checks of the network on EC2: zones, VPCs, security groups, interfaces, ways out."""

from collections.abc import Iterator

from pdctl.base.awsfacts import AwsFacts, AwsGroup, AwsInstance, AwsSubnet
from pdctl.base.efalayout import wanted_interfaces, wrong_interfaces
from pdctl.base.facts import PairFacts
from pdctl.doctor.rows.aws_view import of_aws, of_efa, of_engines
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned

_ALL = "-1"


def _one(aws: AwsFacts, what: str, values: dict[str, str | None]) -> Verdict:
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return skipped(f"EC2 does not tell the {what}")
    if len(set(known.values())) == 1:
        return passed(f"{what} {next(iter(known.values()))}, {len(known)} instances")
    return failed(*(f"{name}: {what} {value}" for name, value in known.items()))


def _zone(aws: AwsFacts, _: PairFacts) -> Verdict:
    return _one(aws, "zone", {each.name: each.zone for each in aws.engines})


def _vpc(aws: AwsFacts, _: PairFacts) -> Verdict:
    return _one(aws, "VPC", {each.name: each.vpc for each in aws.engines})


# ---- security groups ------------------------------------------------------------------------


def _self_rules(aws: AwsFacts, _: PairFacts) -> Verdict:
    if not aws.engines and aws.want.security_group is None:
        return skipped("the group is made with the instances, which do not exist yet")
    if aws.groups is None:
        problem = aws.problems.get("groups") or "EC2 was not asked about security groups"
        return failed(problem) if problem.startswith("Invalid") else skipped(problem)
    groups = {group.id: group for group in aws.groups}
    if not aws.engines:
        return _configured_group(aws.want.security_group or "", aws, groups)
    carried = [set(each.groups) for host in aws.engines for each in host.efa]
    if not carried:
        return skipped("the engines' instances have no EFA interface")
    common = sorted(set.intersection(*carried))
    if not common:
        expected = "expected: one group on all EFA interfaces"
        all_of_them = set.union(*carried)
        if all_of_them <= groups.keys() and _open_to_each_other([groups[g] for g in all_of_them]):
            return warned(*_unshared(aws), f"they let each other through; {expected}")
        return failed(*_unshared(aws), expected)
    lacks = {id: list(_lacking(groups[id])) for id in common if id in groups}
    if not lacks:
        return skipped(f"EC2 tells nothing of {', '.join(common)}")
    good = [id for id, missing in lacks.items() if not missing]
    if good:
        return passed(f"{good[0]} lets everything through, from itself and to itself")
    return failed(*(text for missing in lacks.values() for text in missing), fix=_open(aws, lacks))


def _configured_group(wanted: str, aws: AwsFacts, groups: dict[str, AwsGroup]) -> Verdict:
    if wanted not in groups:
        return failed(f"there is no security group {wanted}", fix=Fix("mend the id"))
    missing = list(_lacking(groups[wanted]))
    if missing:
        return failed(*missing, fix=_open(aws, {wanted: missing}))
    return passed(f"{wanted} lets everything through, from itself and to itself")


def _open_to_each_other(groups: list[AwsGroup]) -> bool:
    """Every group lets all of every other through, both ways."""
    ids = {group.id for group in groups}
    return all(
        ids - {group.id} <= {id for rule in rules if rule.protocol == _ALL for id in rule.groups}
        for group in groups
        for rules in (group.ingress, group.egress)
    )


def _lacking(group: AwsGroup) -> Iterator[str]:
    for rules, way, end in ((group.ingress, "ingress", "from"), (group.egress, "egress", "to")):
        if any(rule.protocol == _ALL and group.id in rule.groups for rule in rules):
            continue
        by_range = any(rule.protocol == _ALL and rule.ranges for rule in rules)
        but = "; a rule by addresses does not count for EFA" if by_range else ""
        yield f"{group.id}: no {way} rule for all traffic {end} {group.id} itself{but}"


def _unshared(aws: AwsFacts) -> Iterator[str]:
    for host in aws.engines:
        groups = sorted({group for each in host.efa for group in each.groups})
        yield f"{host.name}: EFA interfaces with {', '.join(groups) or 'no group'}"


def _open(aws: AwsFacts, lacks: dict[str, list[str]]) -> Fix:
    id, missing = next(iter(lacks.items()))
    ways = [way for way in ("ingress", "egress") if any(f"no {way} rule" in m for m in missing)]
    return Fix(
        "let the group reach itself, both ways; EFA knows no rules by port or address",
        tuple(
            f"aws ec2 authorize-security-group-{way} --region {aws.want.region} --group-id {id} "
            f"--ip-permissions 'IpProtocol=-1,UserIdGroupPairs=[{{GroupId={id}}}]'"
            for way in ways
        ),
    )


# ---- interfaces -----------------------------------------------------------------------------


def _interfaces(aws: AwsFacts, _: PairFacts) -> Verdict:
    bad: list[str] = []
    few: list[str] = []
    fine: list[str] = []
    for host in aws.engines:
        kind = aws.type_of(host.instance_type)
        bad += [f"{host.name}: {text}" for text in wrong_interfaces(host.interfaces, kind)]
        most = kind.max_efa if kind else 0
        count = len(host.efa)
        line = f"{host.name}: {len(host.interfaces)} interfaces, {count} with EFA"
        if kind is not None:
            line += f", {host.instance_type} takes {most} with EFA"
        (bad if count == 0 else few if count < most else fine).append(line)
    if bad:
        return failed(*bad, *few, fix=_lay_out(aws))
    if few:
        return warned(*few, fix=_lay_out(aws), severity="degrade")
    return passed(*fine)


def _lay_out(aws: AwsFacts) -> Fix:
    kinds = [k for host in aws.engines if (k := aws.type_of(host.instance_type)) is not None]
    text = (
        "launch the instances with all their EFA interfaces; they cannot be attached while an "
        "instance runs"
    )
    if not kinds:
        return Fix(text)
    wanted = wanted_interfaces(kinds[0])
    cards = [card for card, _, kind in wanted if kind == "efa-only" and card > 0]
    second = ", card 0 device 1 `efa-only`" if (0, 1, "efa-only") in wanted else ""
    rest = f", cards {cards[0]} to {cards[-1]} device 0 `efa-only`" if cards else ""
    return Fix(
        f"{text}. For {kinds[0].name}, {len(wanted)} interfaces: card 0 device 0 `interface`"
        f"{second}{rest}"
    )


def _address(aws: AwsFacts, _: PairFacts) -> Verdict:
    if aws.want.access != "elastic-ip":
        return skipped(f"`target.network.access: {aws.want.access}` needs no public address")
    lacking = [each for each in aws.engines if each.public_ip is None and _up(each)]
    if not lacking:
        return passed(*(f"{each.name}: {each.public_ip}" for each in aws.engines))
    return failed(
        *(
            f"{each.name} has {len(each.interfaces)} interfaces and no public address"
            for each in lacking
        ),
        fix=_elastic(aws, lacking[0]),
    )


def _up(instance: AwsInstance) -> bool:
    return instance.state in ("pending", "running")


def _elastic(aws: AwsFacts, instance: AwsInstance) -> Fix:
    primary = next((each.id for each in instance.interfaces if each.primary), "eni-…")
    region = aws.want.region
    return Fix(
        "EC2 gives no address by itself to an instance with several interfaces: associate an "
        "elastic IP with its first one",
        (
            f"aws ec2 allocate-address --region {region} --domain vpc",
            f"aws ec2 associate-address --region {region} --network-interface-id {primary} "
            "--allocation-id eipalloc-…",
        ),
    )


def _way_out(aws: AwsFacts, _: PairFacts) -> Verdict:
    subnets = {each.id: each for each in aws.subnets or () if each.routes_known}
    ways = [(h, s) for h in aws.engines if (s := subnets.get(h.subnet or "")) is not None]
    if not ways:
        return skipped("EC2 was not asked about its routes")
    closed = [s.id for _, s in ways if s.way_out is None]
    if closed:
        return skipped(f"{closed[0]} has no default route: a mirror or VPC endpoints must stand in")
    stuck = [
        f"{host.name}: {subnet.id} has its default route to {subnet.way_out}, no public address"
        for host, subnet in ways
        if (subnet.way_out or "").startswith("igw-") and host.public_ip is None
    ]
    if stuck:
        return warned(*stuck)
    return passed(*(f"{host.name}: by {subnet.way_out}" for host, subnet in ways))


def _subnet(aws: AwsFacts, _: PairFacts) -> Verdict:
    if aws.want.subnet is None:
        return skipped("no subnet is configured")
    found = next((each for each in aws.subnets or () if each.id == aws.want.subnet), None)
    if found is None:
        return failed(f"there is no subnet {aws.want.subnet} in {aws.want.region}")
    wrong = list(_unfit(aws, found))
    return failed(*wrong) if wrong else passed(f"{found.id} in {found.zone}, {found.free} free")


def _unfit(aws: AwsFacts, subnet: AwsSubnet) -> Iterator[str]:
    want = aws.want
    if want.zones and subnet.zone is not None and subnet.zone not in want.zones:
        yield f"{subnet.id} is in {subnet.zone}, expected {' or '.join(want.zones)}"
    if want.vpc is not None and subnet.vpc != want.vpc:
        yield f"{subnet.id} is in {subnet.vpc}, expected {want.vpc}"
    needed = sum(each.count for each in want.roles if not each.ids) - len(aws.instances or ())
    if subnet.free is not None and subnet.free < needed:
        yield f"{subnet.id} has {subnet.free} free addresses, expected {needed}"


CHECKS: tuple[Check, ...] = (
    Check(
        id="aws.zone",
        title="all engines are in one availability zone",
        scope="aws",
        severity="block",
        judge=of_engines(_zone),
        meaning="EFA traffic does not cross zones: no KV moves, though HTTP works. libfabric says "
        "`ibv_create_ah failed with EINVAL`.",
        fix=Fix("make the hosts in one zone: name one in `target.zones`", ("pdctl plan",)),
        needs=("aws.access",),
    ),
    Check(
        id="aws.vpc",
        title="all engines are in one VPC",
        scope="aws",
        severity="block",
        judge=of_engines(_vpc),
        meaning="EFA traffic does not cross VPCs.",
        fix=Fix("make the hosts in one VPC (`target.network.vpc`)", ("pdctl plan",)),
        needs=("aws.access",),
    ),
    Check(
        id="aws.security_group",
        title="one security group of all EFA interfaces lets everything through to itself",
        scope="aws",
        severity="block",
        judge=of_efa(_self_rules, "instances"),
        meaning="EFA packets are dropped without a word: the side channel may work, and every "
        "transfer hangs or fails.",
        fix=Fix("put one group that allows all traffic to and from itself on all EFA interfaces"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.interfaces",
        title="the engines' instances have all their EFA interfaces, laid out as they must be",
        scope="aws",
        severity="block",
        judge=of_engines(_interfaces, efa=True),
        meaning="None: KV cannot move over EFA. Fewer than the type takes: transfers are slower by "
        "that share.",
        fix=Fix("launch the instances with all their EFA interfaces"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.address",
        title="the engines' instances have the public address that is asked for",
        scope="aws",
        severity="block",
        judge=of_engines(_address),
        meaning="pdctl does not reach them.",
        fix=Fix("associate an elastic IP with the first interface"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.internet",
        title="the engines' instances can reach the internet",
        scope="aws",
        severity="note",
        judge=of_engines(_way_out, "subnets"),
        meaning="Packages and models cannot be downloaded, unless VPC endpoints or a mirror of "
        "your own stand in. An internet gateway serves only instances with a public address.",
        fix=Fix("use a subnet whose default route goes to a NAT gateway, or an elastic IP"),
        needs=("aws.access",),
    ),
    Check(
        id="aws.subnet",
        title="the configured subnet is there, in the right place, and has room",
        scope="aws",
        severity="block",
        judge=of_aws(_subnet, "subnets", named="subnets"),
        meaning="`pdctl up` cannot make the instances.",
        fix=Fix("choose a subnet in the zone of the hosts (`target.network.subnet`)"),
        needs=("aws.access",),
    ),
)
