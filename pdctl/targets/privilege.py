"""Doing as root what a user who is not root may do by `sudo -n`."""

from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.base.errors import PdctlError, PermissionDeniedError
from pdctl.targets.base import Host, OutputSink, Result

_LIMIT_S = 30.0
# What is written comes on standard input, so that no secret is an argument.
_WRITE = (
    'set -e; umask 077; mkdir -p -m 755 "$(dirname "$1")"; '
    'cat > "$1.pdctl"; chmod "$2" "$1.pdctl"; mv -f "$1.pdctl" "$1"'
)


def root_words(host: Host) -> tuple[str, ...]:
    """What to put in front of a command that needs root: nothing for root itself."""
    result = host.run(command("id", "-u"), timeout=_LIMIT_S)
    return () if result.stdout.strip() == "0" else ("sudo", "-n")


def can_be_root(host: Host, *, sudo: bool = True) -> bool:
    """Whether this user is root, or may become it without a password.

    Args:
        sudo: whether that may be tried.
    """
    words = root_words(host)
    if not words or not sudo:
        return not words
    try:
        return host.run(command(*words, "true"), timeout=_LIMIT_S).ok
    except PdctlError:  # there is no sudo
        return False


def run_as_root(
    host: Host,
    *words: str,
    timeout: float = _LIMIT_S,
    stdin: bytes | None = None,
    on_line: OutputSink | None = None,
) -> Result:
    """Run to the end as root.

    Raises:
        PermissionDeniedError: `sudo -n` does not let us.
        PdctlError: the command failed.
    """
    result = host.run(
        command(*root_words(host), *words), timeout=timeout, stdin=stdin, on_line=on_line
    )
    if result.ok:
        return result
    said = [line for line in result.stderr.strip().splitlines() if line.strip()][-4:]
    if any(line.startswith("sudo:") for line in said):
        raise PermissionDeniedError(
            "root is needed, and `sudo -n` does not give it", where=host.name, detail=said
        )
    raise PdctlError(
        f"`{' '.join(words)}` ended with status {result.exit_status}", where=host.name, detail=said
    )


def write_as_root(host: Host, path: PurePosixPath, content: bytes, *, mode: int) -> None:
    """Replace a file of root's; the content is in no argument."""
    run_as_root(host, "sh", "-c", _WRITE, "sh", str(path), f"{mode:04o}", stdin=content)
