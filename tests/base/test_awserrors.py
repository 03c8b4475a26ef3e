"""Every refusal that is known has a cause, a next step where there is one, and an exit code."""

import pytest

from pdctl.base.awserrors import CATALOGUE, THROTTLED, refused
from pdctl.base.exits import ExitCode


@pytest.mark.parametrize("code", sorted(CATALOGUE))
def test_a_known_code_says_what_it_means(code: str) -> None:
    error = refused(code, "AWS's words", action="ec2:RunInstances", where="us-west-2")
    assert error.message.startswith("ec2:RunInstances: ")
    assert error.message.endswith(f"({code})")
    assert error.detail == ("AWS says: AWS's words",)
    assert error.hints
    assert error.exit_code in (ExitCode.CONFIG, ExitCode.TRY_AGAIN, ExitCode.NO_PERMISSION)


@pytest.mark.parametrize(
    ("code", "exit_code", "elsewhere"),
    [
        ("UnauthorizedOperation", 77, False),
        ("ExpiredToken", 77, False),
        ("InsufficientInstanceCapacity", 75, True),
        ("VcpuLimitExceeded", 75, False),
        ("Unsupported", 65, True),
        ("InvalidParameterValue", 65, False),
        ("AttachmentLimitExceeded", 65, False),
        ("AddressLimitExceeded", 75, False),
        ("RequestLimitExceeded", 75, False),
        ("SomethingNew", 1, False),
    ],
)
def test_codes_lead_to_exit_codes_and_to_other_zones(
    code: str, exit_code: int, elsewhere: bool
) -> None:
    error = refused(code, "", action="ec2:RunInstances", where="us-west-2")
    assert (int(error.exit_code), error.elsewhere) == (exit_code, elsewhere)
    assert error.detail == ()


def test_the_codes_to_wait_on_are_those_of_throttling_and_of_awss_own_failures() -> None:
    assert {"RequestLimitExceeded", "Throttling", "InternalError"} <= THROTTLED
    assert "InsufficientInstanceCapacity" not in THROTTLED
