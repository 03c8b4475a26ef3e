"""API keys of clients: who may ask, and which tenant's conversations they see.

What a line of the file may say, `pdctl.base.keyfile` knows. Only digests are kept in memory. The
tenant of a key without one is a part of its digest, so two keys are two tenants.
"""

import hashlib
import hmac
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pdctl.base.errors import NotFoundError, PdctlError, UsageError
from pdctl.base.keyfile import HASHED, key_lines

log = logging.getLogger("pdctl.router")


@dataclass(frozen=True)
class ApiKeys:
    """Digests of keys, and the tenant of each, in the order of the file."""

    tenants: Mapping[str, str]

    def tenant_of(self, authorization: str | None) -> str | None:
        """The tenant that an `Authorization` header proves, None when it proves none."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            return None
        # A lookup by digest takes no time that depends on how much of the key is right.
        return self.tenants.get(_digest(key.strip()))

    def salt(self, tenant: str, salt: str) -> str:
        """A `cache_salt` that no other tenant can have, whatever `salt` it asks for.

        The secret in it is the digest of the tenant's first key. So it is the same in all routers
        that have the file, and stays while other keys come and go.
        """
        secret = next((digest for digest, name in self.tenants.items() if name == tenant), "")
        said = f"{len(tenant)}:{tenant}{salt}".encode("utf-8", "surrogateescape")
        return hmac.new(secret.encode(), said, "sha256").hexdigest()[:32]


class KeyFile:
    """A file of keys that may change while the router runs.

    Attributes:
        keys: what it said when it was good last.
    """

    def __init__(self, path: Path) -> None:
        """Read it.

        Raises:
            NotFoundError: it cannot be read.
            UsageError: it has no key, or a bad one.
        """
        self._path = path
        self._seen = self._look()
        self.keys = self._read()

    def reread(self) -> bool:
        """Read it again if it is another. True when there are new keys.

        A file that is gone or broken changes nothing: who had a key still has it.
        """
        seen = self._look()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            keys = self._read()
        except PdctlError as error:
            log.error("the API keys stay as they were: %s", error)
            return False
        changed = keys != self.keys
        self.keys = keys
        if changed:
            log.info("%d API keys read from %s", len(keys.tenants), self._path)
        return changed

    def _look(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_size, stat.st_ino

    def _read(self) -> ApiKeys:
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            where = str(self._path)
            raise NotFoundError(f"cannot read the API keys: {error}", where=where) from error
        return parse_keys(text, str(self._path))


def parse_keys(text: str, where: str) -> ApiKeys:
    """Keys from a file's text.

    Raises:
        UsageError: the file has no key, one twice, or a digest that is none.
    """
    tenants: dict[str, str] = {}
    for number, tenant, key in key_lines(text):
        digest = _digest_of(key, f"{where}:{number}")
        if digest in tenants:
            raise UsageError("the same API key stands in the file twice", where=f"{where}:{number}")
        tenants[digest] = tenant or digest[:12]
    if not tenants:
        raise UsageError("no API key in the file", where=where, expected="one a line")
    return ApiKeys(tenants)


def _digest_of(key: str, where: str) -> str:
    """The digest of a key, or the one that stands in its place."""
    if not key:
        raise UsageError("a tenant without a key", where=where, expected="tenant:key")
    if not key.startswith(HASHED):
        return _digest(key)
    digest = key.removeprefix(HASHED).strip().lower()
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise UsageError(
            "not a digest of an API key",
            where=where,
            expected="`sha256:` and 64 hexadecimal digits",
        )
    return digest


def _digest(key: str) -> str:
    # Bytes of a header that are no UTF-8 come as lone surrogates.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
