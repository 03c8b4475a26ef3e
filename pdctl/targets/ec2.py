"""Asking EC2 to do something: every call in one place, told, and its refusal put into words.

What to ask for is decided elsewhere (`plan.ec2request`), and so is the order (`deploy.provision`).
"""

from collections.abc import Callable
from typing import Any

from pdctl.base.awscall import AwsCall
from pdctl.base.awserrors import AwsError, refused
from pdctl.base.exits import ExitCode
from pdctl.targets.ec2_read import Clients, clients_of, permission

_DRY_RUN_WORKS = "DryRunOperation"


Told = Callable[[AwsCall], None]


def _ignore(call: AwsCall) -> None:
    """Nobody wants to know."""


class Ec2:
    """EC2 of one region, as one user.

    Args:
        clients: for tests; by default boto3's own.
        told: gets every call before it is made.
    """

    def __init__(
        self,
        region: str,
        profile: str | None = None,
        *,
        clients: Clients | None = None,
        told: Told | None = None,
    ) -> None:
        self.region, self._profile, self._told = region, profile, told or _ignore
        self._clients = clients

    def ask(self, operation: str, service: str = "ec2", **arguments: Any) -> dict[str, Any]:
        """One call.

        Raises:
            AwsError: AWS refused, or could not be reached; says what that means.
        """
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError

        action = permission(service, operation)
        tried = "whether you may; nothing is done" if arguments.get("DryRun") else ""
        self._told(AwsCall(action, arguments, tried))
        try:
            answer: dict[str, Any] = getattr(self._client(service), operation)(**arguments)
        except ClientError as error:
            said = error.response.get("Error", {})
            code, message = str(said.get("Code") or ""), str(said.get("Message") or "")
            raise refused(code, message, action=action, where=self.region) from error
        except (BotoCoreError, ResponseParserError) as error:
            raise self._unreachable(error, action) from error
        return answer

    def all(self, operation: str, key: str, **arguments: Any) -> list[dict[str, Any]]:
        """All items of a call that answers in pages.

        Raises:
            AwsError: as `ask`.
        """
        found: list[dict[str, Any]] = []
        token: str | None = None
        while True:
            answer = self.ask(operation, **arguments, **({"NextToken": token} if token else {}))
            found += answer.get(key) or ()
            token = answer.get("NextToken")
            if not token:
                return found

    def would_refuse(self, operation: str, **arguments: Any) -> AwsError | None:
        """What EC2 says to a call without doing it; None when it would do it."""
        try:
            self.ask(operation, DryRun=True, **arguments)
        except AwsError as error:
            return None if error.code == _DRY_RUN_WORKS else error
        return None

    def _client(self, service: str) -> Any:
        from botocore.exceptions import BotoCoreError

        if self._clients is None:
            try:
                self._clients = clients_of(self.region, self._profile)
            except BotoCoreError as error:
                raise self._unreachable(error, "login") from error
        return self._clients(service)

    def _unreachable(self, error: Exception, action: str) -> AwsError:
        name = type(error).__name__
        login = "Credential" in name or "Token" in name or "SSO" in name or "Profile" in name
        if login:
            return AwsError(
                f"there are no AWS credentials that work: {error}",
                code=name,
                exit_code=ExitCode.NO_PERMISSION,
                where=self.region,
                hints=["`aws configure`, or set `target.profile`"],
            )
        bad_call = "ParamValidation" in name
        return AwsError(
            f"{action}: {error}" if bad_call else f"AWS cannot be reached: {error}",
            code=name,
            exit_code=ExitCode.BUG if bad_call else ExitCode.UNREACHABLE,
            where=self.region,
        )
