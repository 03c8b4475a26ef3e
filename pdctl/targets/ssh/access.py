"""How to log in to a host: what the configuration says, else OpenSSH's own configuration.

`ssh -G` tells what OpenSSH would do, so Include, Match and tokens mean what they mean there.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pdctl.base.errors import UsageError

_ASK_LIMIT_S = 10.0
_MOST_HOPS = 8
_NONE = frozenset({"", "none"})


@dataclass(frozen=True)
class Login:
    """What pdctl's own configuration says; None where OpenSSH's decides.

    Attributes:
        address: name or address, or an alias of OpenSSH's configuration.
        jump: `[user@]host[:port]`, several divided by commas, the first is reached first.
        pin: keep the first key that an unknown host shows.
        connect_timeout: seconds for connecting and logging in, all hops together.
        pinned: file of the keys that were kept so.
        proxy: command whose two streams are the connection, with OpenSSH tokens; not with jumps.
    """

    address: str
    user: str | None = None
    port: int | None = None
    key_file: Path | None = None
    jump: str | None = None
    pin: bool = False
    connect_timeout: float | None = None
    pinned: Path | None = None
    proxy: str | None = None


@dataclass(frozen=True)
class Hop:
    """One server to log in to.

    Attributes:
        asked: the name it was asked for by.
        key_files: to try; those that are not there are passed over.
        first_key: the one that pdctl's configuration names.
        only_these: no other key of the agent is tried.
        agent: path of the agent's socket; None without one.
        known_hosts: files with host keys, the user's first.
        known_as: the name to look for in them.
        proxy: command whose two streams are the connection, as written.
    """

    asked: str
    host: str
    port: int
    user: str
    key_files: tuple[Path, ...] = ()
    first_key: Path | None = None
    only_these: bool = False
    agent: str | None = None
    known_hosts: tuple[Path, ...] = ()
    known_as: str | None = None
    proxy: str | None = None

    @property
    def where(self) -> str:
        """`user@host:port` for messages."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" if self.port == 22 else f"{self.user}@{host}:{self.port}"

    @property
    def checked_name(self) -> str:
        """The name that the host's key must be known for."""
        return self.known_as or self.host

    def proxy_line(self) -> str:
        """The proxy command with its tokens filled in, for `sh`."""
        tokens = {
            "%h": self.host,
            "%p": str(self.port),
            "%r": self.user,
            "%n": self.asked,
            "%%": "%",
        }
        text, line = self.proxy or "", ""
        while text:
            pair = text[:2]
            step = 2 if pair in tokens else 1
            line += tokens.get(pair, text[0])
            text = text[step:]
        return line


@dataclass(frozen=True)
class Route:
    """All servers on the way, the host itself last.

    Attributes:
        pin, pinned: as in `Login`; for every hop.
        limit: seconds for all of it.
    """

    hops: tuple[Hop, ...]
    pin: bool = False
    pinned: Path | None = None
    limit: float = 15.0

    @property
    def host(self) -> Hop:
        """The host itself."""
        return self.hops[-1]


Answers = Mapping[str, Sequence[str]]
"""What OpenSSH would do: values by lower-case key."""
Ask = Callable[[str, str | None, int | None], Answers]
"""Asks OpenSSH about a host, with the user and port that are given."""


@dataclass(frozen=True)
class OpenSsh:
    """OpenSSH's configuration.

    Attributes:
        file: the user's configuration; None for `~/.ssh/config`.
        environ: for `HOME` and the agent.
    """

    file: Path | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def __call__(self, host: str, user: str | None, port: int | None) -> Answers:
        """Ask.

        Raises:
            UsageError: the configuration cannot be read, or there is no `ssh` to read it.
        """
        program = shutil.which("ssh")
        if program is None:
            return self._without_ssh()
        options = [*self._file_options()]
        if user is not None:
            options += ["-l", user]
        if port is not None:
            options += ["-p", str(port)]
        try:
            done = subprocess.run(
                [program, "-G", "-T", *options, "--", host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_ASK_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise UsageError(
                f"`ssh -G {host}` did not end within {_ASK_LIMIT_S:g} s",
                where=str(self._file()),
                hints=["a `Match exec` of the SSH configuration may be why"],
            ) from error
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if "Pseudo-terminal" not in line]
            raise UsageError(
                f"`ssh -G {host}` fails, so how to reach the host is unknown",
                where=host,
                detail=said,
            )
        return self._at_home(parse_answers(done.stdout))

    def _without_ssh(self) -> Answers:
        if self._file().exists():
            raise UsageError(
                "there is an SSH configuration, and no `ssh` program to read it with",
                where=str(self._file()),
                hints=["install the package `openssh-client`, or move the file away"],
            )
        folder = self.home() / ".ssh"
        keys = [str(folder / name) for name in ("id_ed25519", "id_ecdsa", "id_rsa")]
        return {"identityfile": keys, "userknownhostsfile": [str(folder / "known_hosts")]}

    def _file(self) -> Path:
        return self.file or self.home() / ".ssh" / "config"

    def _file_options(self) -> list[str]:
        """None when `ssh` finds the file by itself: it does not look at `HOME`."""
        if self.file is None and self.home() == _real_home():
            return []
        return ["-F", str(self._file()) if self._file().exists() else "none"]

    def home(self) -> Path:
        """The user's folder, as the environment says."""
        return Path(self.environ.get("HOME") or _real_home())

    def _at_home(self, answers: Answers) -> Answers:
        real, home = f"{_real_home()}/", f"{self.home()}/"
        return {
            key: [
                home + word.removeprefix(real) if word.startswith(real) else word for word in words
            ]
            for key, words in answers.items()
        }


def _real_home() -> Path:
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


def parse_answers(text: str) -> Answers:
    """The lines of `ssh -G`; a key that comes several times has several values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        found.setdefault(key.lower(), []).append(value.strip())
    return found


def route_of(login: Login, ssh: OpenSsh | None = None, *, ask: Ask | None = None) -> Route:
    """The way to a host.

    Args:
        ask: for tests; by default `ssh` itself.

    Raises:
        UsageError: OpenSSH's configuration cannot be used, or its jumps go round in a circle.
    """
    ssh = ssh or OpenSsh()
    answers = (ask or ssh)(login.address, login.user, login.port)
    host = _hop(login.address, login.user, login.port, login.key_file, answers, ssh)
    jumps = _list_of(login.jump) if login.jump is not None else _jumps_in(answers)
    if jumps or login.jump is not None:
        host = _without_proxy(host)
    if login.proxy is not None:
        jumps, host = [], replace(host, proxy=login.proxy)
    hops = [*_through(jumps, ask or ssh, ssh, login.key_file), host]
    limit = login.connect_timeout or _seconds(answers) or Route.limit
    return Route(tuple(hops), login.pin, login.pinned, limit)


def _through(
    jumps: Iterable[str], ask: Ask, ssh: OpenSsh, key_file: Path | None, depth: int = 0
) -> list[Hop]:
    """The hops of jump hosts; the first may have a jump of its own, as for OpenSSH."""
    hops: list[Hop] = []
    for index, text in enumerate(jumps):
        name, user, port = split_jump(text)
        answers = ask(name, user, port)
        hop = _hop(name, user, port, key_file, answers, ssh)
        inner = _jumps_in(answers) if index == 0 else []
        if depth + len(inner) > _MOST_HOPS:
            raise UsageError(
                "the jump hosts of the SSH configuration lead to each other", where=name
            )
        hops += _through(inner, ask, ssh, None, depth + 1)
        hops.append(hop if index == 0 and not inner else _without_proxy(hop))
    return hops


def split_jump(text: str) -> tuple[str, str | None, int | None]:
    """`[user@]host[:port]` or `ssh://…` to host, user and port.

    Raises:
        UsageError: the port is no number.
    """
    user, at, rest = text.removeprefix("ssh://").rstrip("/").rpartition("@")
    host, port = rest, ""
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = tail.removeprefix(":")
    elif rest.count(":") == 1:
        host, _, port = rest.partition(":")
    if port and not port.isdigit():
        raise UsageError(
            f"`{text}` is no jump host", where="SSH access", expected="`user@host:port`"
        )
    return host, user if at else None, int(port) if port else None


def _hop(
    asked: str,
    user: str | None,
    port: int | None,
    key_file: Path | None,
    answers: Answers,
    ssh: OpenSsh,
) -> Hop:
    def first(key: str) -> str | None:
        value = next(iter(answers.get(key, ())), "")
        return None if value.lower() in _NONE else value

    host = first("hostname") or asked
    return Hop(
        asked=asked,
        host=host,
        port=port or int(first("port") or 22),
        user=user or first("user") or pwd.getpwuid(os.getuid()).pw_name,
        key_files=tuple(_path(each, ssh) for each in answers.get("identityfile", ())),
        first_key=key_file,
        only_these=first("identitiesonly") == "yes",
        agent=_agent(first("identityagent"), answers, ssh),
        known_hosts=tuple(
            _path(each, ssh)
            for key in ("userknownhostsfile", "globalknownhostsfile")
            for text in answers.get(key, ())
            for each in text.split()
            if each.lower() not in _NONE and each != "/dev/null"
        ),
        known_as=first("hostkeyalias"),
        proxy=first("proxycommand"),
    )


def _agent(configured: str | None, answers: Answers, ssh: OpenSsh) -> str | None:
    usual = ssh.environ.get("SSH_AUTH_SOCK") or None
    if configured is None:
        # `IdentityAgent none` and no such line at all look the same without their key.
        return None if answers.get("identityagent") else usual
    if configured == "SSH_AUTH_SOCK":
        return usual
    if configured.startswith("$"):
        return ssh.environ.get(configured[1:].strip("{}")) or None
    return str(_path(configured, ssh))


def _path(text: str, ssh: OpenSsh) -> Path:
    text = text.strip('"').replace("%d", str(ssh.home())).replace("%%", "%")
    return ssh.home() / text[2:] if text.startswith("~/") else Path(text)


def _jumps_in(answers: Answers) -> list[str]:
    return _list_of(next(iter(answers.get("proxyjump", ())), ""))


def _list_of(text: str) -> list[str]:
    return [] if text.strip().lower() in _NONE else [each.strip() for each in text.split(",")]


def _seconds(answers: Answers) -> float | None:
    text = next(iter(answers.get("connecttimeout", ())), "")
    return float(text) if text.isdigit() and int(text) else None


def _without_proxy(hop: Hop) -> Hop:
    return replace(hop, proxy=None)
