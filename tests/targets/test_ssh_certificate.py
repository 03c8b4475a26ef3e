"""Hosts that prove themselves by a certificate, with a real sshd and ssh-keygen."""

import base64
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from pdctl.base.command import command
from pdctl.base.errors import PermissionDeniedError
from pdctl.targets.ssh import certificate, known_hosts
from pdctl.targets.ssh.certificate import BrokenCertificateError
from pdctl.targets.ssh.host import SshHost
from tests.targets.sshd import nobodys_ssh, running_sshd, why_not

HOST = "127.0.0.1"


def keygen(*words: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *words], check=True, timeout=20, capture_output=True)


@dataclass
class Authority:
    """A folder with an authority's key and a host's."""

    folder: Path

    @property
    def line(self) -> str:
        kind, key, *_ = (self.folder / "ca.pub").read_text().split()
        return f"{kind} {key}"

    def sign(self, *, name: str = HOST, valid: str = "-5m:+5m", host: bool = True) -> Path:
        key = self.folder / "s" / "host_key.pub"
        what = ["-h"] if host else []
        words = ("-s", str(self.folder / "ca"), "-I", "test", *what, "-n", name, "-V", valid)
        keygen(*words, str(key))
        return key.with_name("host_key-cert.pub")

    def blob(self, **changes: object) -> bytes:
        return base64.b64decode(self.sign(**changes).read_text().split()[1])  # type: ignore[arg-type]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "ca"))
    (tmp_path / "s").mkdir()
    for name in ("key", "host_key"):
        keygen("-t", "ed25519", "-N", "", "-f", str(tmp_path / "s" / name))
    return Authority(tmp_path)


def log_in(authority: Authority, known: str) -> bool:
    """With nothing but these lines; True when it went well."""
    folder = authority.folder
    (folder / "known").write_text(known)
    more = f"HostCertificate {folder}/s/host_key-cert.pub"
    with running_sshd(folder / "s", more=more) as server:
        login = server.login(pinned=folder / "known")
        host = SshHost("h", login, ssh=nobodys_ssh(folder))
        try:
            return host.run(command("true"), timeout=10).ok
        finally:
            host.close()


@pytest.mark.parametrize("names", ["*", f"[{HOST}]:*", HOST])
def test_an_authority_vouches_for_its_hosts(authority: Authority, names: str) -> None:
    authority.sign()
    assert log_in(authority, f"@cert-authority {names} {authority.line}\n")


@pytest.mark.parametrize(
    ("signed", "known", "why"),
    [
        ({"name": "another"}, "@cert-authority * {ca}", "it is for another"),
        ({"valid": "-2h:-1h"}, "@cert-authority * {ca}", "it has expired"),
        ({"valid": "+1h:+2h"}, "@cert-authority * {ca}", "it is not valid yet"),
        ({"host": False}, "@cert-authority * {ca}", "it is a certificate for users"),
        ({}, "@cert-authority * {ca}\n@revoked * {ca}", "its authority was revoked"),
    ],
)
def test_a_certificate_that_proves_nothing(
    authority: Authority, signed: dict[str, object], known: str, why: str
) -> None:
    """Judged as it would come over the wire; a real server shows none of them at all."""
    text = known.format(ca=authority.line)
    entries = list(known_hosts.parse("known", text))
    found = certificate.why_not(
        certificate.parse(authority.blob(**signed)),
        HOST,
        known_hosts.authorities(entries, HOST, 2222),
        known_hosts.revoked(entries, HOST, 2222),
        lambda key, content, signature: True,
    )
    assert found == why


def test_a_stranger_who_signs_is_not_an_authority(authority: Authority) -> None:
    authority.sign(name="*")
    ca = authority.line
    keygen("-t", "ed25519", "-N", "", "-f", str(authority.folder / "other"))
    kind, key, *_ = (authority.folder / "other.pub").read_text().split()
    with pytest.raises(PermissionDeniedError, match="key is not known") as caught:
        log_in(authority, f"@cert-authority * {kind} {key}\n")
    assert caught.value.detail == (
        "it shows a certificate: its authority is not known for this host",
    )
    with pytest.raises(PermissionDeniedError, match="key is not known"):
        log_in(authority, f"@cert-authority another.example {ca}\n")
    shown = (authority.folder / "s" / "host_key.pub").read_text().split()[:2]
    with pytest.raises(PermissionDeniedError, match="revoked"):
        log_in(authority, f"@cert-authority * {ca}\n@revoked * {' '.join(shown)}\n")


def test_a_certificate_that_was_changed_is_not_what_was_signed(authority: Authority) -> None:
    from pdctl.targets.ssh.connect import _made_by

    blob = authority.blob(name="127.0.0.9")
    changed = blob.replace(b"127.0.0.9", b"127.0.0.1")
    entries = list(known_hosts.parse("known", f"@cert-authority * {authority.line}"))
    for content, host, why in (
        (blob, "127.0.0.9", ""),
        (changed, HOST, "its authority did not sign it"),
    ):
        parsed = certificate.parse(content)
        assert certificate.why_not(parsed, host, entries, (), _made_by) == why


def test_bytes_that_are_no_certificate(authority: Authority) -> None:
    blob = authority.blob()
    plain = base64.b64decode((authority.folder / "s" / "host_key.pub").read_text().split()[1])
    for content in (b"", plain, blob[:-1], blob + b"x", blob[:40]):
        with pytest.raises(BrokenCertificateError):
            certificate.parse(content)
