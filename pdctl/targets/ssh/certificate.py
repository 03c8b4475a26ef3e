"""OpenSSH's certificates of hosts (PROTOCOL.certkeys): read, and judged by the authorities known.

Pure: whether the authority really signed it is asked of `verify`.
"""

import base64
import fnmatch
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pdctl.targets.ssh.known_hosts import Entry

_HOST = 2
_KEY_FIELDS = {
    "ssh-ed25519-cert-v01@openssh.com": 1,
    "ecdsa-sha2-nistp256-cert-v01@openssh.com": 2,
    "ecdsa-sha2-nistp384-cert-v01@openssh.com": 2,
    "ecdsa-sha2-nistp521-cert-v01@openssh.com": 2,
    "ssh-rsa-cert-v01@openssh.com": 2,
}
"""By type, how many fields the certified key has."""

OFFERED = (
    "ssh-ed25519-cert-v01@openssh.com",
    "ecdsa-sha2-nistp256-cert-v01@openssh.com",
    "ecdsa-sha2-nistp384-cert-v01@openssh.com",
    "ecdsa-sha2-nistp521-cert-v01@openssh.com",
    "rsa-sha2-512-cert-v01@openssh.com",
    "rsa-sha2-256-cert-v01@openssh.com",
)
"""What a host is asked for that an authority may have certified."""
_SIGNED_WITH = frozenset(
    {
        *("ssh-ed25519", "rsa-sha2-256", "rsa-sha2-512"),
        *("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    }
)
"""Not by SHA-1, which anybody may forge."""

Verify = Callable[[bytes, bytes, bytes], bool]
"""Whether a key (its blob) made a signature over content: key, content, signature."""


class BrokenCertificateError(ValueError):
    """These bytes are no certificate."""


@dataclass(frozen=True)
class Certificate:
    """A certificate as it was shown.

    Attributes:
        kind: 1 for users, 2 for hosts.
        after, before: seconds since the epoch; good from the one until before the other.
        critical: options that must be understood.
        authority: blob of the key that signed it.
        signed: the bytes that were signed.
    """

    kind: int
    key_id: str
    principals: tuple[str, ...]
    after: int
    before: int
    critical: bytes
    authority: bytes
    signature: bytes
    signed: bytes


class _Reader:
    def __init__(self, content: bytes) -> None:
        self._content, self.at = content, 0

    def take(self, size: int) -> bytes:
        if self.at + size > len(self._content):
            raise BrokenCertificateError("it ends early")
        self.at += size
        return self._content[self.at - size : self.at]

    def number(self, form: str) -> int:
        found: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return found

    def string(self) -> bytes:
        return self.take(self.number(">I"))

    @property
    def is_done(self) -> bool:
        return self.at == len(self._content)


def parse(blob: bytes) -> Certificate:
    """Read one.

    Raises:
        BrokenCertificateError: it is none, or of a type that is not known.
    """
    reader = _Reader(blob)
    try:
        fields = _KEY_FIELDS.get(reader.string().decode())
        if fields is None:
            raise BrokenCertificateError("its type is not known")
        for _ in range(1 + fields):  # a nonce comes first
            reader.string()
        reader.number(">Q")  # serial
        kind, key_id = reader.number(">I"), reader.string().decode()
        names = _Reader(reader.string())
        principals = []
        while not names.is_done:
            principals.append(names.string().decode())
        after, before = reader.number(">Q"), reader.number(">Q")
        critical = reader.string()
        for _ in range(2):  # extensions, and what is reserved
            reader.string()
        authority = reader.string()
        signed = blob[: reader.at]
        signature = reader.string()
    except UnicodeDecodeError as error:
        raise BrokenCertificateError("it has names that are no text") from error
    if not reader.is_done:
        raise BrokenCertificateError("something comes behind it")
    return Certificate(
        *(kind, key_id, tuple(principals), after, before, critical, authority, signature, signed)
    )


def why_not(
    certificate: Certificate,
    host: str,
    authorities: Iterable[Entry],
    revoked: Iterable[Entry],
    verify: Verify,
    *,
    now: float | None = None,
) -> str:
    """Why a certificate does not prove that a server is `host`; empty when it does.

    Args:
        authorities: lines of known_hosts that are about this host.
        revoked: lines with keys that nobody is to trust.
        now: seconds since the epoch; default is this machine's clock.
    """
    moment = time.time() if now is None else now
    authority = base64.b64encode(certificate.authority).decode()
    if certificate.kind != _HOST:
        return "it is a certificate for users"
    if authority in {each.key for each in revoked}:
        return "its authority was revoked"
    if authority not in {each.key for each in authorities}:
        return "its authority is not known for this host"
    if not any(fnmatch.fnmatchcase(host.lower(), _plain(p)) for p in certificate.principals):
        return f"it is for {', '.join(certificate.principals) or 'nobody'}"
    if not certificate.after <= moment < certificate.before:
        return "it is not valid yet" if moment < certificate.after else "it has expired"
    if certificate.critical:
        return "it has critical options, which are not known"
    try:
        kind = _Reader(certificate.signature).string().decode(errors="replace")
    except BrokenCertificateError:
        return "its signature is broken"
    if kind not in _SIGNED_WITH:
        return f"it is signed with {kind}"
    if not verify(certificate.authority, certificate.signed, certificate.signature):
        return "its authority did not sign it"
    return ""


def _plain(principal: str) -> str:
    # Of patterns OpenSSH knows `*` and `?` only.
    return principal.lower().replace("[", "[[]")
