"""OpenSSH's `known_hosts`: which keys a host is known by, and what a presented key means. Pure."""

import base64
import fnmatch
import hashlib
import hmac
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

_AUTHORITY = "@cert-authority"
_REVOKED = "@revoked"
DEFAULT_PORT = 22


@dataclass(frozen=True)
class Entry:
    """One line.

    Attributes:
        file, line: where it stands, counted from 1.
        names: patterns divided by commas, or `|1|salt|hash`.
        key_type, key: such as `ssh-ed25519`, and the key in base64.
        marker: `@revoked`, `@cert-authority`, or empty.
    """

    file: str
    line: int
    names: str
    key_type: str
    key: str
    marker: str = ""

    @property
    def where(self) -> str:
        """`FILE:LINE`."""
        return f"{self.file}:{self.line}"


Meaning = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True)
class Verdict:
    """What a presented key means, and the lines that say so."""

    meaning: Meaning
    entries: tuple[Entry, ...] = ()


def parse(file: str, text: str) -> Iterator[Entry]:
    """The lines of a file that can be read; the others are skipped, as OpenSSH does."""
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#"):
            yield Entry(file, number, fields[0], fields[1], fields[2], marker)


def name_of(host: str, port: int) -> str:
    """How a server is written in such a file."""
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


def known_types(entries: Iterable[Entry], host: str, port: int) -> list[str]:
    """Types of the keys that a host is known by, to ask it for one of those."""
    return list(dict.fromkeys(each.key_type for each in _of_host(entries, host, port)))


def authorities(entries: Iterable[Entry], host: str, port: int) -> list[Entry]:
    """Lines with the keys that may certify a host's; without its port too, as OpenSSH has it."""
    return _marked(_AUTHORITY, entries, host, port)


def revoked(entries: Iterable[Entry], host: str, port: int) -> list[Entry]:
    """Lines with keys that are not to be trusted."""
    return _marked(_REVOKED, entries, host, port)


def _marked(marker: str, entries: Iterable[Entry], host: str, port: int) -> list[Entry]:
    return [
        each
        for each in entries
        if each.marker == marker and any(_matches(each, host, p) for p in (port, DEFAULT_PORT))
    ]


def judge(entries: Sequence[Entry], host: str, port: int, key_type: str, key: str) -> Verdict:
    """What it means that a server shows this key."""
    if never := [each for each in revoked(entries, host, port) if each.key == key]:
        return Verdict("revoked", tuple(never))
    found = _of_host(entries, host, port)
    same = [each for each in found if (each.key_type, each.key) == (key_type, key)]
    if same:
        return Verdict("known", tuple(same))
    if found:
        return Verdict("changed", tuple(found))
    if port != DEFAULT_PORT:  # as OpenSSH: a key that is known for the host is good on any port
        plain = judge(entries, host, DEFAULT_PORT, key_type, key)
        if plain.meaning == "known":
            return plain
    return Verdict("unknown")


def fingerprint(key: str) -> str:
    """`SHA256:…`, as `ssh-keygen -l` shows it, of a key in base64."""
    digest = hashlib.sha256(base64.b64decode(key)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _of_host(entries: Iterable[Entry], host: str, port: int) -> list[Entry]:
    return [each for each in entries if not each.marker and _matches(each, host, port)]


def _matches(entry: Entry, host: str, port: int) -> bool:
    name = name_of(host.lower(), port)
    if entry.names.startswith("|1|"):
        return _is_hash_of(entry.names, name)
    verdict = False
    for pattern in entry.names.lower().split(","):
        if _fits(pattern.removeprefix("!"), name):
            if pattern.startswith("!"):
                return False
            verdict = True
    return verdict


def _fits(pattern: str, name: str) -> bool:
    # Brackets are part of `[host]:port` here, not a set of characters.
    return fnmatch.fnmatchcase(name, pattern.replace("[", "[[]"))


def _is_hash_of(text: str, name: str) -> bool:
    try:
        _, _, salt, digest = text.split("|")
        made = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(made, base64.b64decode(digest))
    except ValueError:
        return False
