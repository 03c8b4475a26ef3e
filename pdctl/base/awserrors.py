"""What AWS's refusals mean: cause, next steps and exit code. The table that `docs/ec2.md` shows.

Codes and texts as in the EC2 API reference ("Error codes for the Amazon EC2 API") and in the
reports of users of other tools; none was provoked here on EC2 itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pdctl.base.errors import PdctlError
from pdctl.base.exits import ExitCode


@dataclass(frozen=True)
class Meaning:
    """What one code means.

    Attributes:
        exit_code: of the command that met it.
        cause: in a sentence.
        steps: what to do next.
        elsewhere: another zone may work.
    """

    exit_code: ExitCode
    cause: str
    steps: tuple[str, ...]
    elsewhere: bool = False


_LOGIN = (
    "`aws sts get-caller-identity` shows who you are to AWS",
    "log in again, and run it again",
)
_WAIT = ("run the same command again: it goes on where it stopped",)
_AGAIN, _NO, _CONFIG = ExitCode.TRY_AGAIN, ExitCode.NO_PERMISSION, ExitCode.CONFIG
_DENIED = Meaning(
    _NO,
    "your AWS user or role may not do this",
    ("docs/ec2.md has the policy that pdctl needs", *_LOGIN[:1]),
)
_EXPIRED = Meaning(_NO, "the AWS credentials are not valid, or not any more", _LOGIN)
_SLOW = Meaning(_AGAIN, "AWS asks to slow down, and did so at every attempt", _WAIT)
_BUSY = Meaning(_AGAIN, "AWS failed by itself", _WAIT)
_NO_RESERVATION = Meaning(
    _CONFIG,
    "there is no such capacity reservation in this region and account",
    ("`aws ec2 describe-capacity-reservations` lists yours", "mend `capacity.reservation_id`"),
)
_NO_SUBNET_ROOM = Meaning(
    _AGAIN,
    "the subnet has not enough free addresses",
    ("name a larger subnet in `network.subnet`",),
    elsewhere=True,
)
_QUOTA = "aws service-quotas list-service-quotas --service-code ec2"

CATALOGUE: dict[str, Meaning] = {
    # who you are
    "UnauthorizedOperation": _DENIED,
    "AccessDenied": _DENIED,
    "AccessDeniedException": _DENIED,
    "AuthFailure": _EXPIRED,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "RequestExpired": _EXPIRED,
    "InvalidClientTokenId": _EXPIRED,
    "SignatureDoesNotMatch": _EXPIRED,
    "UnrecognizedClientException": _EXPIRED,
    "OptInRequired": Meaning(
        _NO, "the account has not opted in to this region or service", _LOGIN[:1]
    ),
    # capacity
    "InsufficientInstanceCapacity": Meaning(
        _AGAIN,
        "AWS has no such instances free in this zone now; a cluster placement group that the "
        "reservation was not made in gives the same answer",
        (
            "list more zones in `target.zones`",
            "reserve: `capacity.kind: odcr`, or a capacity block",
            "run it again later",
        ),
        elsewhere=True,
    ),
    "InsufficientHostCapacity": Meaning(
        _AGAIN, "AWS has no free host in this zone now", ("run it again later",), elsewhere=True
    ),
    "InsufficientCapacity": Meaning(
        _AGAIN, "AWS has no such capacity now", ("run it again later",), elsewhere=True
    ),
    "SpotMaxPriceTooLow": Meaning(
        _AGAIN, "spot costs more than it may now", ("run it again later",), elsewhere=True
    ),
    "MaxSpotInstanceCountExceeded": Meaning(
        _AGAIN, "the account's limit of spot instances is reached", (f"`{_QUOTA}`",)
    ),
    "ReservationCapacityExceeded": Meaning(
        _AGAIN,
        "the reservation has fewer free instances than are needed",
        (
            "end what runs in it, and wait some minutes: a slot is not free at once",
            "enlarge it with `aws ec2 modify-capacity-reservation`",
        ),
    ),
    "Unsupported": Meaning(
        _CONFIG,
        "the instance type is not offered like this in this zone",
        ("`aws ec2 describe-instance-type-offerings` lists its zones",),
        elsewhere=True,
    ),
    "InsufficientFreeAddressesInSubnet": _NO_SUBNET_ROOM,
    # limits
    "VcpuLimitExceeded": Meaning(
        _AGAIN,
        "the account's quota of vCPUs for such instances is too low (on demand P: L-417A185B)",
        (
            "ask for more, which takes days: `aws service-quotas "
            "request-service-quota-increase --service-code ec2 --quota-code L-417A185B "
            "--desired-value N`",
        ),
    ),
    "InstanceLimitExceeded": Meaning(
        _AGAIN, "the account's limit of instances is reached", (f"`{_QUOTA}`",)
    ),
    "AddressLimitExceeded": Meaning(
        _AGAIN,
        "the account has as many elastic IP addresses as it may have (quota L-0263D0A3)",
        ("release unused ones, or set `network.access: private`",),
    ),
    "NetworkInterfaceLimitExceeded": Meaning(
        _AGAIN,
        "the region's limit of network interfaces is reached (quota L-DF5E4CA3)",
        (f"`{_QUOTA}`",),
    ),
    "VolumeLimitExceeded": Meaning(
        _AGAIN, "the account's limit of volumes is reached", (f"`{_QUOTA}`",)
    ),
    # what the file says
    "InvalidCapacityReservationId.NotFound": _NO_RESERVATION,
    "InvalidCapacityReservationId.Malformed": _NO_RESERVATION,
    "InvalidAMIID.NotFound": Meaning(
        _CONFIG, "there is no such image in this region", ("mend `target.image`, or remove it",)
    ),
    "InvalidAMIID.Unavailable": Meaning(
        _CONFIG, "the image cannot be used any more", ("mend `target.image`, or remove it",)
    ),
    "InvalidSubnetID.NotFound": Meaning(
        _CONFIG, "there is no such subnet in this region", ("mend `network.subnet`",)
    ),
    "InvalidVpcID.NotFound": Meaning(
        _CONFIG, "there is no such VPC in this region", ("mend `network.vpc`",)
    ),
    "InvalidGroup.NotFound": Meaning(
        _CONFIG, "there is no such security group", ("mend `network.security_group`",)
    ),
    "InvalidGroupId.Malformed": Meaning(
        _CONFIG, "this is no id of a security group", ("mend `network.security_group`",)
    ),
    "InvalidKeyPair.NotFound": Meaning(
        _CONFIG,
        "there is no such key pair in this region",
        ("mend `target.key_name`, or remove it: pdctl then makes a key of its own",),
    ),
    "InvalidInstanceType": Meaning(
        _CONFIG, "there is no such instance type", ("mend `target.instance_type`",)
    ),
    "InvalidInstanceID.NotFound": Meaning(
        _CONFIG,
        "there is no such instance in this region",
        ("mend `target.instance_ids`; of an instance just made, run the command again",),
    ),
    "InvalidInstanceID.Malformed": Meaning(
        _CONFIG, "this is no id of an instance", ("mend `target.instance_ids`",)
    ),
    "InvalidParameterCombination": Meaning(
        _CONFIG,
        "EC2 does not take these settings together; with several network interfaces it gives no "
        "public address",
        ("set `network.access: elastic-ip` or `private`",),
    ),
    "InvalidParameterValue": Meaning(
        _CONFIG,
        "EC2 does not take one of the values; `the market type … is not valid` means a capacity "
        "block's id without `capacity.kind: capacity-block`, or the other way round",
        ("`pdctl plan --verbose` shows the request",),
    ),
    "InvalidRequest": Meaning(
        _CONFIG, "EC2 does not take the request", ("`pdctl plan --verbose` shows it",)
    ),
    "InvalidBlockDeviceMapping": Meaning(
        _CONFIG,
        "the root volume does not fit the image",
        ("`target.root_volume_gib` must be at least the image's own size",),
    ),
    "AttachmentLimitExceeded": Meaning(
        _CONFIG,
        "a network card of this type takes no such interface",
        ("report it: pdctl's layout for this type is wrong",),
    ),
    "UnsupportedOperation": Meaning(
        _CONFIG,
        "this instance type does not do it, such as EFA on a type that has none",
        ("`pdctl doctor --only aws.*` says which types are fit",),
    ),
    "InvalidPlacementGroup.Unknown": Meaning(
        _CONFIG, "there is no such placement group", ("pdctl uses none by itself",)
    ),
    "InvalidPermission.Duplicate": Meaning(_AGAIN, "the rule is there already", ("run it again",)),
    "OperationNotPermitted": Meaning(
        _NO,
        "the instance is protected against termination, or managed by something else",
        (
            "`aws ec2 modify-instance-attribute --instance-id ID --no-disable-api-termination`",
            "then run `pdctl down` again",
        ),
    ),
    "DependencyViolation": Meaning(
        _AGAIN, "something else still uses it", ("run `pdctl down` again in a minute",)
    ),
    "IdempotentParameterMismatch": Meaning(
        _CONFIG,
        "an interrupted `up` asked for other hosts than the file says now",
        ("`pdctl down` first, then `pdctl up`",),
    ),
    # AWS itself
    "RequestLimitExceeded": _SLOW,
    "Throttling": _SLOW,
    "ThrottlingException": _SLOW,
    "EC2ThrottledException": _SLOW,
    "InternalError": _BUSY,
    "InternalFailure": _BUSY,
    "ServiceUnavailable": _BUSY,
    "Unavailable": _BUSY,
}

_UNKNOWN = Meaning(ExitCode.BAD_ANSWER, "AWS refused it", ())

THROTTLED = frozenset(code for code, each in CATALOGUE.items() if each in (_SLOW, _BUSY))
"""Codes after which the same call may work a moment later."""


class AwsError(PdctlError):
    """AWS refused a call. `code` is AWS's own, or the name of what went wrong on the way."""

    def __init__(
        self,
        message: str,
        *,
        code: str,
        exit_code: ExitCode,
        elsewhere: bool = False,
        where: str | None = None,
        hints: Sequence[str] = (),
        detail: Sequence[str] = (),
    ) -> None:
        super().__init__(message, where=where, hints=hints, detail=detail)
        self.code = code
        self.exit_code = exit_code
        self.elsewhere = elsewhere


def refused(code: str, said: str, *, action: str, where: str) -> AwsError:
    """AWS's refusal in words.

    Args:
        said: AWS's own message.
        action: the IAM action of the call, such as `ec2:RunInstances`.
    """
    meaning = CATALOGUE.get(code) or _UNKNOWN
    return AwsError(
        f"{action}: {meaning.cause} ({code})",
        code=code,
        exit_code=meaning.exit_code,
        elsewhere=meaning.elsewhere,
        where=where,
        hints=meaning.steps,
        detail=[f"AWS says: {said}"] if said else [],
    )
