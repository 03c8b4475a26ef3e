"""Which keys to offer, in which order: the named one, the agent's, the usual files."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pdctl.targets.ssh.access import Hop

if TYPE_CHECKING:
    import paramiko

_LIST_S = 3.0


@dataclass(frozen=True)
class Offer:
    """A key that can sign, and how messages name it."""

    name: str
    key: "paramiko.PKey"


@dataclass
class Offers:
    """What there is to offer.

    Attributes:
        keys: in order.
        passed_over: keys that cannot be used, with the reason.
        locked: files that have a passphrase and are not in the agent.
    """

    keys: list[Offer] = field(default_factory=list)
    passed_over: list[str] = field(default_factory=list)
    locked: list[Path] = field(default_factory=list)


def offers_of(hop: Hop, agent: "list[paramiko.PKey]") -> Offers:
    """All keys for one server, each once."""
    offers = Offers()
    held = {key.asbytes(): key for key in agent}
    files = ([hop.first_key] if hop.first_key else []) + list(hop.key_files)
    named = [file for file in files if _is_named(hop, file)]
    for file in named:
        _add_file(offers, file, held, must_exist=file == hop.first_key)
    if not hop.only_these:
        for key in agent:
            _add(offers, f"key `{_comment(key)}` of the agent", key)
    for file in files:
        if file not in named:
            _add_file(offers, file, held, must_exist=False)
    return offers


def _is_named(hop: Hop, file: Path) -> bool:
    """Named by somebody, rather than one of the usual files, which come last."""
    usual = file.parent.name == ".ssh" and file.name.startswith("id_")
    return file == hop.first_key or hop.only_these or not usual


def _add(offers: Offers, name: str, key: "paramiko.PKey") -> None:
    if all(each.key.asbytes() != key.asbytes() for each in offers.keys):
        offers.keys.append(Offer(name, key))


def _add_file(
    offers: Offers, file: Path, held: "dict[bytes, paramiko.PKey]", *, must_exist: bool
) -> None:
    in_agent = held.get(_public_part(file))
    if in_agent is not None:
        _add(offers, f"{file} by the agent", in_agent)
        return
    if not file.exists():
        if must_exist:
            offers.passed_over.append(f"{file}: there is no such file")
        return
    try:
        _add(offers, str(file), _load(file))
    except _LockedError:
        offers.locked.append(file)
        offers.passed_over.append(f"{file}: it has a passphrase, and the agent does not hold it")
    except OSError as error:
        offers.passed_over.append(f"{file}: {error.strerror or error}")
    except Exception as error:  # cryptography and paramiko have many, for kinds they do not know
        offers.passed_over.append(f"{file}: not a key that can be used ({error})")


class _LockedError(Exception):
    """The key needs a passphrase."""


def _load(file: Path) -> "paramiko.PKey":
    import paramiko

    try:
        return paramiko.PKey.from_path(file)
    except (TypeError, paramiko.PasswordRequiredException) as error:
        # cryptography says so with a TypeError.
        raise _LockedError from error


def _public_part(file: Path) -> bytes:
    """The public key next to a private one, which may be the agent's to sign with."""
    import base64

    try:
        text = file if file.suffix == ".pub" else file.with_name(f"{file.name}.pub")
        return base64.b64decode(text.read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return b""


def _comment(key: "paramiko.PKey") -> str:
    return getattr(key, "comment", "") or key.get_name()


@contextmanager
def agent_keys(path: str | None, limit: float) -> "Iterator[list[paramiko.PKey]]":
    """The keys of an agent, while it is open; none when it does not answer."""
    if path is None:
        yield []
        return
    from paramiko.agent import AgentSSH

    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(min(limit / 3, _LIST_S))
        agent = AgentSSH()
        try:
            connection.connect(path)
            # paramiko's own way there waits for ever and knows one agent only.
            agent._connect(connection)  # type: ignore[attr-defined]
            keys = list(agent.get_keys())
            # An agent may ask somebody before it signs, so for that it has all the time.
            connection.settimeout(limit)
        except Exception:  # a dead agent is no reason not to try the files
            keys = []
        yield list(keys)
