"""docs/hosts.md says what is really asked."""

import re
from pathlib import Path

from pdctl.observe.scripts import look
from pdctl.targets import ec2_read
from pdctl.targets.ec2_read import permission

PAGE = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()


def test_the_permissions_are_those_of_the_calls() -> None:
    source = Path(ec2_read.__file__).read_text()
    calls = {permission("ec2", call) for call in re.findall(r'"(describe_\w+)"', source)}
    calls |= {permission("service-quotas", call) for call in re.findall(r'"(get_\w+)"', source)}
    assert set(re.findall(r'"((?:ec2|servicequotas):\w+)"', PAGE)) == calls
    # Reads only.
    assert all(re.match(r"\w+:(Describe|Get)", call) for call in calls)


def test_every_part_has_a_row() -> None:
    looked_at = PAGE.partition("\n## Hosts\n")[2].partition("\n## AWS\n")[0]
    rows = re.findall(r"^\| (\w[^|]*?) \|", looked_at, re.MULTILINE)
    assert len(rows) - 1 == len(look.PARTS)  # the first is the head
