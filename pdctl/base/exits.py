"""The exit codes of pdctl, the same for every command. Scripts rely on the numbers."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status says. The numbers follow sysexits where one fits."""

    OK = 0
    """Done, or healthy."""
    BAD_ANSWER = 1
    """The command ran, and the answer is bad: a check failed, or reuse was not verified."""
    USAGE = 2
    """The command line itself is wrong."""
    CONFIG = 65
    """The configuration is invalid."""
    NOT_FOUND = 66
    """A file that was named does not exist or cannot be read."""
    UNREACHABLE = 69
    """A host or service did not answer."""
    BUG = 70
    """A bug in pdctl."""
    TRY_AGAIN = 75
    """Temporary: the lock is held, there is no capacity, a deadline passed."""
    NO_PERMISSION = 77
    """SSH or AWS refused the credentials."""
    INTERRUPTED = 130
    """Ctrl-C."""
    BROKEN_PIPE = 141
    """Whoever read the output left, as `head` does."""
