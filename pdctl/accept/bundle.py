"""The bundle: one archive with everything that a run saw, without secrets."""

import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path

from pdctl.accept.model import Report
from pdctl.base.errors import PermissionDeniedError
from pdctl.base.redact import redacted

REPORT, CONFIG = "accept.json", "config.yaml"


def write_bundle(
    path: Path, report: Report, *, config: str, folder: Path, secrets: Collection[str]
) -> str:
    """Write it, and give its digest.

    Args:
        path: `….tar.gz`; one that is there is replaced.
        config: text of the configuration file.
        folder: further files; those below it go in as they are called there.
        secrets: values to take out, beside what looks like a secret.

    Raises:
        PermissionDeniedError: it cannot be written.
    """
    texts = {REPORT: json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n"}
    texts |= {CONFIG: config, **dict(_files(folder))}
    root = path.name.removesuffix(".tar.gz")
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, text in texts.items():
            data = redacted(text, secrets).encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"{root}/{name}")
            entry.size, entry.mode = len(data), 0o600
            archive.addfile(entry, io.BytesIO(data))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(held.getvalue())
    except OSError as error:
        raise PermissionDeniedError(
            f"cannot write the bundle: {error.strerror}", where=str(path)
        ) from error
    return hashlib.sha256(held.getvalue()).hexdigest()


def _files(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_text(errors="replace")
