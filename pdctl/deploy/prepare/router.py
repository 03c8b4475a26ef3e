"""pdctl on router hosts: an environment that `up` makes, unless there is one of the user's own."""

import functools
import hashlib
from pathlib import PurePosixPath

from pdctl.base.command import command
from pdctl.base.errors import BadAnswerError
from pdctl.deploy.prepare.task import Task
from pdctl.deploy.prepare.wheel import build_wheel, wheel_name
from pdctl.targets.base import Host, OutputSink

ROUTER_TASK = "pdctl"

_LIMIT_S = 60.0
_INSTALL_LIMIT_S = 1800.0
_FIND = "for p in python3.13 python3.12 python3.11 /usr/bin/python3 python3; do " \
    '"$p" -I -c "import sys; sys.exit(sys.version_info < (3, 11))" 2>/dev/null && ' \
    'command -v "$p" && exit; done; exit 1'  # fmt: skip
_QUIET = ("--disable-pip-version-check", "--no-input", "--progress-bar", "off")


def pdctl_task(hosts: tuple[str, ...], python: PurePosixPath, *, redis: bool) -> Task:
    """Make it, and renew it when this pdctl is another one.

    Args:
        python: the environment's interpreter, as the router's command has it.
        redis: whether routers share a store.
    """
    return Task(
        id=ROUTER_TASK,
        what="install this pdctl for the router",
        done="it is there",
        hosts=hosts,
        look=lambda host: _look(host, python, _fingerprint(redis)),
        apply=lambda host, tell: _install(host, python, redis, tell),
        phase="software",
    )


@functools.cache
def _wheel() -> bytes:
    return build_wheel()


def _fingerprint(redis: bool) -> str:
    return hashlib.sha256(_wheel() + bytes(redis)).hexdigest()


def marker_of(python: PurePosixPath) -> PurePosixPath:
    """Is there in an environment that pdctl made, and says which pdctl is in it."""
    return python.parent.parent / "PDCTL"


def _look(host: Host, python: PurePosixPath, wanted: str) -> str:
    made = host.read_file(marker_of(python))
    if made is None:
        return "" if _is_the_users(host, python) else "there is none"
    return "" if made.decode(errors="replace").strip() == wanted else "it is another version"


def _is_the_users(host: Host, python: PurePosixPath) -> bool:
    """An environment that pdctl did not make, and that has pdctl, is left as it is."""
    if not host.exists(python):
        return False
    return host.run(command(str(python), "-c", "import pdctl.router"), timeout=_LIMIT_S).ok


def _install(host: Host, python: PurePosixPath, redis: bool, tell: OutputSink) -> None:
    folder = python.parent.parent
    wheel = folder.parent / "wheels" / wheel_name()
    host.write_file(wheel, _wheel())
    if not host.exists(marker_of(python)):
        _run(host, tell, _base_python(host), "-I", "-m", "venv", "--clear", str(folder))
        host.write_file(marker_of(python), b"unfinished\n")
    pip = (str(python), "-I", "-m", "pip", "install")
    extra = "[redis]" if redis else ""
    _run(host, tell, *pip, f"{wheel}{extra}", *_QUIET)
    # The same version may be another program: pip would leave the old one.
    _run(host, tell, *pip, "--force-reinstall", "--no-deps", str(wheel), *_QUIET)
    host.write_file(marker_of(python), _fingerprint(redis).encode() + b"\n")


def _base_python(host: Host) -> str:
    found = host.run(command("sh", "-c", _FIND), timeout=_LIMIT_S)
    if found.ok:
        return found.stdout.strip()
    raise BadAnswerError(
        "the router needs Python 3.11 or newer",
        where=host.name,
        hints=["on Ubuntu 22.04: `sudo apt-get install -y python3.11 python3.11-venv`"],
    )


def _run(host: Host, tell: OutputSink, *words: str) -> None:
    done = host.run(command(*words), timeout=_INSTALL_LIMIT_S, on_line=tell)
    if not done.ok:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise BadAnswerError(
            f"pdctl could not be installed: `{words[3]}` ended with status {done.exit_status}",
            where=host.name,
            detail=lines[-12:],
            hints=["`pdctl up` goes on with this step"],
        )
