"""EC2's answers to facts, and what a configuration asks of it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.validate import ParamValidator

from pdctl.base.awsfacts import AwsFacts, AwsInterface, AwsType, WantedInstances
from pdctl.base.efalayout import wanted_interfaces, wrong_interfaces
from pdctl.base.facts import from_json, to_json
from pdctl.base.instances import INSTANCE_TYPES, rdma_read
from pdctl.observe.aws import facts_of, query_of, want_of
from pdctl.render.check import load_checked
from pdctl.targets.ec2_read import Ec2Answers
from tests.observe import ec2

EXAMPLES = Path(__file__).parents[2] / "examples"

OPERATIONS = {
    "statuses": ("DescribeInstanceStatus", "InstanceStatuses"),
    "interfaces": ("DescribeNetworkInterfaces", "NetworkInterfaces"),
    "groups": ("DescribeSecurityGroups", "SecurityGroups"),
    "subnets": ("DescribeSubnets", "Subnets"),
    "routes": ("DescribeRouteTables", "RouteTables"),
    "reservation": ("DescribeCapacityReservations", "CapacityReservations"),
    "offered": ("DescribeInstanceTypeOfferings", "InstanceTypeOfferings"),
}


@pytest.mark.parametrize("part", sorted(OPERATIONS))
def test_the_samples_have_ec2s_shapes(part: str) -> None:
    """A sample with a key that EC2 does not have would prove nothing."""
    client = boto3.client(
        "ec2", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="y"
    )
    operation, key = OPERATIONS[part]
    shape = client.meta.service_model.operation_model(operation).output_shape
    assert shape is not None
    report = ParamValidator().validate({key: ec2.parts()[part]}, shape)
    assert not report.has_errors(), report.generate_report()


def test_instances() -> None:
    facts = facts_of(ec2.WANT, ec2.answers())
    assert facts.instances is not None
    decode, prefill = facts.instances
    assert (prefill.name, prefill.role, decode.name) == ("prefill-0", "prefill", "decode-0")
    assert (prefill.state, prefill.zone, prefill.vpc) == ("running", "us-west-2c", "vpc-1")
    assert len(prefill.interfaces) == 17
    assert len(prefill.efa) == 16
    assert prefill.interfaces[0].primary
    assert prefill.interfaces[1].private_ip is None
    assert (prefill.shutdown, prefill.protected, prefill.tokens) == ("terminate", False, "required")
    assert (prefill.system_status, prefill.instance_status) == ("ok", "ok")
    assert prefill.launched_at == ec2.NOW.timestamp()


def test_the_rest() -> None:
    facts = facts_of(ec2.WANT, ec2.answers())
    kind = facts.type_of("p5en.48xlarge")
    assert kind is not None
    assert (kind.efa, kind.max_efa, len(kind.cards), kind.vcpus, kind.gpus) == (
        True,
        16,
        16,
        192,
        8,
    )
    assert facts.groups is not None
    assert facts.groups[0].egress[0].ranges == ("0.0.0.0/0",)
    assert facts.groups[0].egress[1].groups == (ec2.GROUP,)
    assert facts.subnets is not None
    assert (facts.subnets[0].way_out, facts.subnets[0].free) == ("nat-1", 250)
    assert facts.reservation is not None
    assert (facts.reservation.kind, facts.reservation.ends_at) == ("default", None)
    assert facts.offered == {"p5en.48xlarge": ("us-west-2a", "us-west-2c", "us-west-2d")}
    assert from_json(AwsFacts, json.loads(json.dumps(to_json(facts)))) == facts


def test_a_subnets_own_route_table_comes_before_the_main_one() -> None:
    own = {
        "VpcId": "vpc-1",
        "Associations": [{"SubnetId": "subnet-1"}],
        "Routes": [{"DestinationCidrBlock": "0.0.0.0/0", "GatewayId": "igw-1", "State": "active"}],
    }
    facts = facts_of(ec2.WANT, ec2.answers(routes=[*ec2.parts()["routes"], own]))
    assert facts.subnets is not None
    assert facts.subnets[0].way_out == "igw-1"


def test_what_was_not_asked_is_not_empty() -> None:
    facts = facts_of(ec2.WANT, ec2.answers({"groups": "no permission"}, groups=None, routes=None))
    assert facts.groups is None
    assert facts.problems == {"groups": "no permission"}
    assert facts.subnets is not None
    assert facts.subnets[0].routes_known is False
    assert facts_of(ec2.WANT, Ec2Answers(error="no login")).error == "no login"


def test_events_that_are_over_do_not_count() -> None:
    events = [
        {"Code": "instance-retirement", "Description": "The instance is on degraded hardware"},
        {"Code": "system-reboot", "Description": "[Completed] Scheduled reboot"},
    ]
    facts = facts_of(ec2.WANT, ec2.answers(statuses=[ec2.status("i-1", Events=events)]))
    assert facts.instances is not None
    assert facts.instances[1].events == ("instance-retirement",)


@pytest.mark.parametrize(
    "item",
    [{}, {"Placement": None, "State": None, "MetadataOptions": None, "NetworkInterfaces": None}],
)
def test_empty_answers(item: dict[str, Any]) -> None:
    keys = (
        "instances",
        "types",
        "groups",
        "subnets",
        "reservation",
        "placement_groups",
        "quotas",
        "offered",
        "routes",
    )
    facts = facts_of(ec2.WANT, Ec2Answers({key: [item] for key in keys}))
    assert facts.instances is not None
    assert facts.error is None


def test_adopted_instances_have_the_names_of_their_roles() -> None:
    want = replace(
        ec2.WANT,
        roles=(
            WantedInstances("prefill", "p5en.48xlarge", 1, ("i-2",)),
            WantedInstances("decode", "p5en.48xlarge", 1, ("i-1",)),
        ),
    )
    facts = facts_of(want, ec2.answers())
    assert facts.instances is not None
    assert [(each.id, each.name) for each in facts.instances] == [
        ("i-1", "decode-0"),
        ("i-2", "prefill-0"),
    ]
    assert query_of(want).ids == ("i-2", "i-1")
    assert query_of(want).tags == {}


def test_what_the_example_asks() -> None:
    config = load_checked(EXAMPLES / "p5en-1p1d.yaml").config
    want = want_of(config)
    assert want is not None
    assert (want.region, want.capacity, want.max_hours) == ("us-west-2", "odcr", 8)
    assert [(each.role, each.instance_type, each.count) for each in want.roles] == [
        ("prefill", "p5en.48xlarge", 1),
        ("decode", "p5en.48xlarge", 1),
        ("router", "c7i.2xlarge", 1),
    ]
    query = query_of(want)
    assert query.tags == {"pdctl:deployment": "p5en-1p1d"}
    assert query.quotas == ("L-417A185B",)
    assert query.types == ("c7i.2xlarge", "p5en.48xlarge")
    local = load_checked(EXAMPLES / "local-cpu.yaml").config
    assert want_of(local) is None


def test_a_router_host_is_one_only_where_the_configuration_has_one(tmp_path: Path) -> None:
    text = (EXAMPLES / "p5en-1p1d.yaml").read_text()
    (tmp_path / "api-keys.txt").write_text("k\n")
    line = "  router: {count: 1, instance_type: c7i.2xlarge}\n"
    assert line in text
    file = tmp_path / "pd.yaml"

    def roles(instead: str) -> list[tuple[str, int, tuple[str, ...]]]:
        file.write_text(text.replace(line, instead))
        want = want_of(load_checked(file).config)
        assert want is not None
        return [(each.role, each.count, each.ids) for each in want.roles]

    engines = [("prefill", 1, ()), ("decode", 1, ())]
    assert roles("") == engines
    adopted = "  instance_ids: {router: [i-0a]}\n"
    assert roles(adopted) == [*engines, ("router", 1, ("i-0a",))]


@pytest.mark.parametrize("name", sorted(INSTANCE_TYPES))
def test_the_list_of_types_agrees_with_ec2(name: str) -> None:
    """Counts as DescribeInstanceTypes had them; RDMA and Nitro are not in any API."""
    facts = facts_of(ec2.WANT, Ec2Answers({"types": [ec2.real_types()[name]]}))
    kind, known = facts.type_of(name), INSTANCE_TYPES[name]
    assert kind is not None
    assert kind.efa
    assert (kind.max_efa, len(kind.cards), kind.gpus) == (known.efa, known.cards, known.gpus)
    assert ("efa" in kind.cards[0].kinds) == known.efa_on_first_card


def test_types_that_have_efa_and_are_said_to_read() -> None:
    assert rdma_read("g6.8xlarge")
    assert rdma_read("g6.4xlarge") is False
    assert rdma_read("p4d.24xlarge")
    assert rdma_read("g5.48xlarge") is False
    assert rdma_read("x9.metal") is None
    for name in ("g6.8xlarge", "g6e.12xlarge", "gr6.8xlarge"):
        assert ec2.real_types()[name]["NetworkInfo"]["EfaSupported"]


def _kind(name: str) -> AwsType:
    facts = facts_of(ec2.WANT, Ec2Answers({"types": [ec2.real_types()[name]]}))
    found = facts.type_of(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "interfaces", "efa", "on_first_card"),
    [
        ("p5en.48xlarge", 17, 16, True),
        ("p5.48xlarge", 33, 32, True),
        ("p6-b300.48xlarge", 17, 16, False),
        ("p5.4xlarge", 2, 1, True),
    ],
)
def test_the_layout_of_a_type(name: str, interfaces: int, efa: int, on_first_card: bool) -> None:
    kind = _kind(name)
    wanted = wanted_interfaces(kind)
    assert len(wanted) == interfaces
    assert sum(each[2] == "efa-only" for each in wanted) == efa == kind.max_efa
    assert ((0, 1, "efa-only") in wanted) == on_first_card
    made = [AwsInterface(f"eni-{i}", what, card, dev) for i, (card, dev, what) in enumerate(wanted)]
    assert list(wrong_interfaces(made, kind)) == []


@pytest.mark.parametrize(
    ("name", "interface", "said"),
    [
        ("p5en.48xlarge", AwsInterface("e", "efa-only", 0, 0), "the first interface is efa-only"),
        ("p5en.48xlarge", AwsInterface("e", "efa", 16, 0), "has no card 16"),
        ("p5.48xlarge", AwsInterface("e", "efa", 3, 2), "device 2 on card 3, which takes 2"),
        ("p6-b300.48xlarge", AwsInterface("e", "efa", 0, 0), "card 0 of p6-b300.48xlarge takes no"),
    ],
)
def test_what_breaks_a_rule(name: str, interface: AwsInterface, said: str) -> None:
    assert any(said in each for each in wrong_interfaces([interface], _kind(name)))


def test_a_card_takes_one_efa() -> None:
    two = [AwsInterface("a", "efa", 1, 0), AwsInterface("b", "efa-only", 1, 1)]
    assert list(wrong_interfaces(two, None)) == ["card 1 has 2 EFA interfaces, a card takes one"]


@pytest.mark.parametrize("kinds", [("efa", "efa"), ("efa", "efa-only")])
def test_other_layouts_in_use_break_no_rule(kinds: tuple[str, str]) -> None:
    """`efa` on the first interface too: eksctl, dstack, SkyPilot and others do so."""
    first, rest = kinds
    made = [AwsInterface("e0", first, 0, 0)]
    made += [AwsInterface(f"e{card}", rest, card, 1) for card in range(1, 16)]
    assert list(wrong_interfaces(made, _kind("p5en.48xlarge"))) == []
