"""Each call to AWS refused by itself: never a traceback, and always the permission by its name."""

from collections.abc import Callable
from typing import Any

import pytest

from pdctl.base.exits import ExitCode
from pdctl.targets.ec2_read import permission
from tests.cli.helpers import CliResult
from tests.ec2.account import ARRIVED, SERVICES, Account
from tests.ec2.cloud import Region
from tests.ec2.test_docs import policy

READ_BY_PLAN = (
    "describe_instances", "describe_instance_types", "describe_instance_type_offerings",
    "describe_vpcs", "describe_subnets", "describe_route_tables", "describe_images",
    "get_parameter", "describe_key_pairs", "get_products", "describe_capacity_reservations",
    "get_service_quota", "describe_security_groups",
)  # fmt: skip
"""Before there is any host."""
READ_OF_HOSTS = (
    "describe_instance_status", "describe_network_interfaces", "describe_instance_attribute",
    "describe_placement_groups",
)  # fmt: skip
READ_BY_TAG = (
    "describe_instances", "describe_addresses", "describe_network_interfaces", "describe_volumes",
    "describe_security_groups", "describe_key_pairs",
)  # fmt: skip
"""What `orphans` lists, what `down` ends and proves, and what an `up` without record looks for."""
MAKING = (
    "create_security_group", "authorize_security_group_ingress", "authorize_security_group_egress",
    "import_key_pair", "run_instances", "create_tags", "allocate_address", "associate_address",
)  # fmt: skip
ENDING = (
    "terminate_instances", "release_address", "delete_security_group", "delete_key_pair",
)  # fmt: skip
LEFT_BEHIND = ("delete_network_interface", "delete_volume")
"""Asked for only when something outlived its instance."""
NEEDED = ("describe_vpcs", "describe_subnets", "describe_images")
"""Of the reads before there is any host: what none can be made without."""


def action(operation: str) -> str:
    return permission(SERVICES.get(operation, "ec2"), operation)


def refused(result: CliResult, operation: str) -> None:
    """It says which permission is missing, and scripts can tell."""
    assert result.exit_code == ExitCode.NO_PERMISSION, result.stderr
    assert action(operation) in result.stderr
    assert "Traceback" not in result.stderr


def test_every_permission_of_the_policy_is_refused_in_a_test() -> None:
    tried = {*READ_BY_PLAN, *READ_OF_HOSTS, *READ_BY_TAG, *MAKING, *ENDING, *LEFT_BEHIND}
    assert {action(each) for each in tried} == {a for s in policy() for a in s["Action"]}


@pytest.mark.parametrize("operation", READ_BY_PLAN)
def test_plan_goes_on_without_what_it_may_not_ask(account: Account, operation: str) -> None:
    capacity = {"kind": "odcr", "reservation_id": "cr-0123456789abcdef0", "max_hours": 8}
    network = {"access": "elastic-ip", "security_group": "sg-0123456789abcdef0"}
    image = account.region.image if operation == "describe_images" else None
    account.write("LIBFABRIC", instance_type="p5en.48xlarge", image=image, key_name="mine",
                  capacity=capacity, network=network)  # fmt: skip
    for unknown in ("describe_capacity_reservations", "describe_security_groups", "get_parameter"):
        account.region.refuse(unknown, "InternalError", times=100)  # moto has none of these
    account.region.refusals[operation] = []
    account.region.refuse(operation, "UnauthorizedOperation", times=100)
    shown = account.run("plan")
    assert shown.exit_code == 0, shown.stderr
    assert f"no permission for {action(operation)}" in shown.stderr
    doctor = account.run("doctor", "--only", "aws.*")
    assert doctor.exit_code in (ExitCode.OK, ExitCode.BAD_ANSWER), doctor.stderr


@pytest.mark.parametrize("operation", [o for o in READ_BY_PLAN if o not in READ_BY_TAG])
def test_up_goes_on_without_what_it_can_do_without(account: Account, operation: str) -> None:
    account.refuse(operation)
    up = account.up()
    if operation in NEEDED:
        refused(up, operation)
        assert "what no host can be made without could not be asked" in up.stderr
        assert account.region.left() == []
        return
    assert up.exit_code == ExitCode.TRY_AGAIN, up.stderr
    assert ARRIVED in up.stderr
    assert len(account.region.running()) == 3


def test_with_ids_in_the_file_neither_vpc_nor_subnets_need_to_be_looked_at(
    account: Account,
) -> None:
    subnet = account.region.subnets["us-west-2c"]
    account.write(network={"access": "private", "vpc": account.region.vpc, "subnet": subnet})
    account.region.refuse("describe_vpcs", "UnauthorizedOperation", times=100)
    account.region.refuse("describe_subnets", "UnauthorizedOperation", times=100)
    up = account.up()
    assert ARRIVED in up.stderr, up.stderr
    assert "no permission for ec2:DescribeVpcs" in up.stderr


@pytest.mark.parametrize("operation", [*READ_BY_TAG, *MAKING])
def test_up_names_what_it_needs_and_may_not_do(account: Account, operation: str) -> None:
    account.refuse(operation)
    up = account.up()
    refused(up, operation)
    if running := account.region.running():
        assert "on EC2 there are now" in up.stderr
        assert [e["InstanceId"] for e in running if e["InstanceId"] not in up.stderr] == []
    account.allow()
    again = account.up()
    assert ARRIVED in again.stderr
    assert len(account.region.running()) == 3


@pytest.mark.parametrize("operation", READ_OF_HOSTS)
def test_hosts_that_cannot_be_looked_at_closely_are_still_used(
    account: Account, operation: str
) -> None:
    account.write("LIBFABRIC", instance_type="p5en.48xlarge")
    if operation == "describe_placement_groups":
        placed(account.region)
    account.up()
    account.refuse(operation)
    plan = account.run("plan")
    assert plan.exit_code == 0, plan.stderr
    assert f"no permission for {action(operation)}" in plan.stderr
    assert ARRIVED in account.up().stderr
    doctor = account.run("doctor", "--only", "aws.*", "--all")
    assert "Traceback" not in doctor.stderr
    if operation != "describe_network_interfaces":  # DescribeInstances tells of them too
        assert action(operation) in doctor.stdout


def placed(region: Region) -> None:
    """Instances are in a placement group, which moto forgets."""
    real = region.done

    def done(operation: str, arguments: dict[str, Any], do: Callable[..., Any]) -> Any:
        answer = real(operation, arguments, do)
        if operation == "describe_instances":
            for each in (i for group in answer["Reservations"] for i in group["Instances"]):
                each["Placement"]["GroupName"] = "near"
        return answer

    region.done = done  # type: ignore[method-assign]


@pytest.mark.parametrize("operation", READ_BY_TAG)
def test_orphans_names_what_it_may_not_list(account: Account, operation: str) -> None:
    account.refuse(operation)
    refused(account.run("orphans"), operation)


@pytest.mark.parametrize("operation", [*READ_BY_TAG, *ENDING, *LEFT_BEHIND])
def test_down_ends_what_it_may_and_names_the_rest(account: Account, operation: str) -> None:
    account.up()
    if operation in LEFT_BEHIND:
        account.region.leave_behind()
    account.refuse(operation)
    refused(account.run("down"), operation)
    # What costs most must not go on because of something that costs nothing.
    ended = operation not in ("describe_instances", "terminate_instances")
    assert (account.region.running() == []) is ended
    account.allow()
    down = account.run("down")
    assert down.exit_code == 0, down.stderr
    assert account.region.left() == []
