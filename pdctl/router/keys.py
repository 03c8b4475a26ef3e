"""API keys of clients: who may ask, and which tenant's conversations they see.

The file has one key a line, `tenant:key` or a bare key; `#` begins a comment. Only digests are kept
in memory. The tenant of a bare key is a part of its digest, so two keys are two tenants.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pdctl.base.errors import UsageError


@dataclass(frozen=True)
class ApiKeys:
    """Digests of keys, and the tenant of each."""

    tenants: Mapping[str, str]

    def tenant_of(self, authorization: str | None) -> str | None:
        """The tenant that an `Authorization` header proves, None when it proves none."""
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            return None
        # A lookup by digest takes no time that depends on how much of the key is right.
        return self.tenants.get(_digest(key.strip()))


def parse_keys(text: str, where: str) -> ApiKeys:
    """Keys from a file's text.

    Raises:
        UsageError: the file has no key, or one twice.
    """
    tenants: dict[str, str] = {}
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.partition("#")[0].strip()
        if not line:
            continue
        tenant, colon, key = line.partition(":")
        if not colon:
            tenant, key = "", line
        digest = _digest(key.strip())
        if digest in tenants:
            raise UsageError("the same API key stands in the file twice", where=f"{where}:{number}")
        tenants[digest] = tenant.strip() or digest[:12]
    if not tenants:
        raise UsageError("no API key in the file", where=where, expected="one a line")
    return ApiKeys(tenants)


def _digest(key: str) -> str:
    # Bytes of a header that are no UTF-8 come as lone surrogates.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
