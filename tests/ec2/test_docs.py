"""docs/ec2.md has the permissions that are used, all of them and no other."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.awsfacts import MADE_TAG
from pdctl.base.errors import PermissionDeniedError
from pdctl.deploy import ec2
from pdctl.targets.ec2_read import permission
from tests.ec2.account import SERVICES
from tests.ec2.cloud import NAME, REGION, Region, config_of, document, quick_clock

PAGE = (Path(__file__).parents[2] / "docs" / "ec2.md").read_text()


def policy() -> list[dict[str, Any]]:
    found = re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    statements: list[dict[str, Any]] = json.loads(found.group(1))["Statement"]
    return statements


def test_the_policy_allows_what_is_used_and_nothing_else(region: Region, tmp_path: Path) -> None:
    content = document(region.image, instance_type="c7i.2xlarge")
    content["kv"]["backends"] = ["UCX"]
    config = config_of(tmp_path, content)
    looked = ec2.look(config, now=0.0, clients=region.client)
    ec2.make(config, looked, clock=quick_clock(), clients=region.client)

    # What moto has not, as a look at another configuration asks for it.
    region.refuse("describe_capacity_reservations", "InvalidCapacityReservationId.NotFound")
    region.refuse("describe_placement_groups", "InvalidPlacementGroup.Unknown")
    region.refuse("get_parameter", "ParameterNotFound")
    region.refuse("describe_key_pairs", "InvalidKeyPair.NotFound")
    capacity = {"kind": "odcr", "reservation_id": "cr-0123456789abcdef0"}
    content["target"] |= {"capacity": capacity, "key_name": "mine", "zones": []}
    content["target"] |= {"instance_type": "p5en.48xlarge"}
    del content["target"]["image"]
    real = region.done

    def grouped(operation: str, arguments: dict[str, Any], do: Any) -> Any:
        answer = real(operation, arguments, do)
        if operation == "describe_instances":
            for reservation in answer["Reservations"]:
                for each in reservation["Instances"]:
                    each["Placement"]["GroupName"] = "near"
        return answer

    region.done = grouped  # type: ignore[method-assign]
    ec2.look(config_of(tmp_path, content), now=0.0, dry_run=False, clients=region.client)
    region.done = real  # type: ignore[method-assign]
    region.leave_behind()
    ec2.end(NAME, REGION, None, clock=quick_clock(), clients=region.client)
    assert region.left() == []

    used = {permission(SERVICES.get(each, "ec2"), each) for each in region.actions}
    allowed = {action for statement in policy() for action in statement["Action"]}
    assert allowed == used


def test_what_ends_or_changes_things_is_allowed_on_pdctls_own_only() -> None:
    free, own = policy()
    assert list(own["Condition"]["StringLike"]) == [f"aws:ResourceTag/{MADE_TAG}"]
    assert not any(re.match(r"ec2:(Terminate|Delete|Release)", each) for each in free["Action"])


def test_the_instances_of_an_account_without_permission_are_named(
    region: Region, tmp_path: Path
) -> None:
    """Without any permission `plan` still answers, and says which are missing."""
    content = document(region.image)
    config = config_of(tmp_path, content)
    for statement in policy():
        for action in statement["Action"]:
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", action.partition(":")[2]).lower()
            region.refuse(name, "UnauthorizedOperation", times=20)
    looked = ec2.look(config, now=0.0, clients=region.client)
    assert len(looked.plan.hosts) == 3
    assert any("no permission for ec2:DescribeInstanceTypes" in line for line in looked.unknown)
    with pytest.raises(PermissionDeniedError, match="nothing was made") as refused:
        ec2.make(config, looked, clock=quick_clock(), clients=region.client)
    assert any("ec2:CreateSecurityGroup" in line for line in refused.value.detail)
