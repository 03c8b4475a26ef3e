"""A key pair of a deployment's own: the private half never leaves this machine."""

from pathlib import Path

from pdctl.base.errors import NotFoundError


def public_of(private: Path) -> str:
    """The public line beside a private key file, as OpenSSH has it.

    Raises:
        NotFoundError: there is none.
    """
    public = private.with_name(f"{private.name}.pub")
    try:
        return public.read_text().strip()
    except OSError as error:
        raise NotFoundError(
            f"there is no public half of `{private}`",
            where=str(public),
            hints=[f"`ssh-keygen -y -f {private} > {public}` writes it"],
        ) from error


def new_key(comment: str) -> tuple[bytes, bytes]:
    """A new Ed25519 key: private file and public line."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return private, public + f" {comment}\n".encode()
