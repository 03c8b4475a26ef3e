"""Errors as data: what happened, where, what was expected, what to do next.

The class owns the exit code, so a command never maps messages to codes.
"""

from collections.abc import Sequence

from pdctl.base.exits import ExitCode


class PdctlError(Exception):
    """An error that a user can act on.

    Args:
        message: what happened, in sentence case without a full stop.
        where: the file, host, process or URL it happened at.
        expected: what would have been right.
        hints: what to do next; runnable commands where there are any.
        detail: lines of evidence, such as the last lines of a log. Shown as they are.
    """

    exit_code: ExitCode = ExitCode.BAD_ANSWER

    def __init__(
        self,
        message: str,
        *,
        where: str | None = None,
        expected: str | None = None,
        hints: Sequence[str] = (),
        detail: Sequence[str] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.expected = expected
        self.hints = tuple(hints)
        self.detail = tuple(detail)

    def as_dict(self) -> dict[str, object]:
        """The error for `--json` output; keys without a value are left out."""
        fields: dict[str, object] = {
            "error": self.message,
            "where": self.where,
            "expected": self.expected,
            "hints": list(self.hints),
            "detail": list(self.detail),
            "exit_code": int(self.exit_code),
        }
        return {key: value for key, value in fields.items() if value not in (None, [])}


class BadAnswerError(PdctlError):
    """The command ran, and what it found is bad."""

    exit_code = ExitCode.BAD_ANSWER


class UsageError(PdctlError):
    """The command line asks for something that makes no sense."""

    exit_code = ExitCode.USAGE


class NotFoundError(PdctlError):
    """A file that the user named is missing or unreadable."""

    exit_code = ExitCode.NOT_FOUND


class UnreachableError(PdctlError):
    """A host or service did not answer, or a process that should serve is dead."""

    exit_code = ExitCode.UNREACHABLE


class TemporaryError(PdctlError):
    """Trying again later may work: lock held, no capacity, deadline passed."""

    exit_code = ExitCode.TRY_AGAIN


class PermissionDeniedError(PdctlError):
    """Credentials were refused, or the file system said no."""

    exit_code = ExitCode.NO_PERMISSION


class BugError(PdctlError):
    """Something that cannot happen did."""

    exit_code = ExitCode.BUG
