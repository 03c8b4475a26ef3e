"""One call to AWS, as it is shown before it is made."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AwsCall:
    """One call to AWS.

    Attributes:
        action: its IAM action, such as `ec2:RunInstances`.
        why: what for; empty where that is not said.
    """

    action: str
    arguments: Mapping[str, Any]
    why: str = ""

    def __str__(self) -> str:
        told = f"{self.action} {json.dumps(self.arguments, default=str)}"
        return f"{told} ({self.why})" if self.why else told

    def as_dict(self) -> dict[str, object]:
        """For `plan --json --verbose`."""
        arguments = json.loads(json.dumps(self.arguments, default=str))
        return {"action": self.action, "arguments": arguments, "why": self.why}
