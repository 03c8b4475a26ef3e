"""A folder with all that `doctor` saw, without secrets: for others to judge, or for a test."""

import errno
import json
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pdctl import __version__
from pdctl.base.errors import (
    BadAnswerError,
    PdctlError,
    PermissionDeniedError,
    TemporaryError,
    UsageError,
)
from pdctl.base.exits import ExitCode
from pdctl.base.facts import PairFacts, from_json, to_json
from pdctl.base.redact import redacted

SCHEMA_VERSION = 1
"""Raised when an older pdctl could no longer read what this one writes."""

FACTS, CONFIG, CONTENTS, LOGS = "facts.json", "config.yaml", "CONTENTS.txt", "logs"
_KIND = "pdctl doctor bundle"
_LOG_LINES = 2000
_LONGEST_LINE = 4000


class BundleError(PdctlError):
    """A bundle that cannot be used."""

    exit_code = ExitCode.NOT_FOUND


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn the system's refusal to write a bundle into words."""
    try:
        yield
    except OSError as error:
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        kind: type[PdctlError] = TemporaryError if full else UsageError
        if isinstance(error, PermissionError):
            kind = PermissionDeniedError
        raise kind(
            f"the bundle cannot be saved: {error.strerror or error}",
            where=str(folder),
            expected="a folder that can be made or written in",
            hints=[
                "free some space, or choose another folder" if full else "choose another folder"
            ],
        ) from error


def require_free(folder: Path) -> None:
    """Refuse a folder that has something else in it; an older bundle is replaced.

    Raises:
        UsageError: it is no folder, or not all in it is a bundle's.
    """
    with _explained(folder):
        if not folder.exists():
            return
        if not folder.is_dir():
            raise UsageError("there is a file of that name", where=str(folder))
        found = sorted(folder.iterdir())
        if (folder / LOGS).is_dir():
            found += (folder / LOGS).iterdir()
    names = [each.name for each in found]
    # Behind a link is a file of somebody else, which is not to be written to.
    others = [
        each.name
        for each in found
        if each.is_symlink()
        or (each.parent == folder and each.name not in (FACTS, CONFIG, CONTENTS, LOGS))
    ]
    if names and (others or not _is_bundle(folder)):
        raise UsageError(
            "the folder has something else in it",
            where=str(folder),
            expected="a folder that is new, empty, or an older bundle",
            detail=others[:5],
        )


def _is_bundle(folder: Path) -> bool:
    try:
        return bool(json.loads((folder / FACTS).read_bytes()).get("kind") == _KIND)
    except (OSError, ValueError, AttributeError):
        return False


def save_bundle(
    folder: Path,
    facts: PairFacts,
    *,
    config: str | None,
    logs: Mapping[str, bytes],
    secrets: Collection[str] = (),
) -> list[str]:
    """Write a bundle, and give one line for each thing in it.

    Args:
        config: text of the configuration file; None when there is none.
        logs: by process; the last lines are kept.
        secrets: values to take out, beside what looks like a secret.

    Raises:
        UsageError: see `require_free`.
    """
    require_free(folder)
    document = {
        "kind": _KIND,
        "schema_version": SCHEMA_VERSION,
        "pdctl_version": __version__,
        "saved_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "facts": _without_secrets(to_json(facts), secrets),
    }
    files = {FACTS: json.dumps(document, indent=1, ensure_ascii=False) + "\n"}
    if config is not None:
        files[CONFIG] = redacted(config, secrets)
    for name, data in logs.items():
        files[f"{LOGS}/{name}.log"] = redacted("".join(_last_lines(data)), secrets)
    lines = [f"{name}: {_what(name)}, {len(_bytes(text))} bytes" for name, text in files.items()]
    files[CONTENTS] = "\n".join(lines) + "\n"
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for stale in (folder / LOGS).glob("*.log"):
            stale.unlink()
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(exist_ok=True, mode=0o700)
            path.write_bytes(_bytes(text))
            path.chmod(0o600)
    return lines


def _bytes(text: str) -> bytes:
    """UTF-8; what a name has that is none, such as a file's, becomes a question mark."""
    return text.encode("utf-8", "replace")


def _last_lines(data: bytes) -> Iterator[str]:
    for line in data.decode("utf-8", "replace").splitlines()[-_LOG_LINES:]:
        yield line[:_LONGEST_LINE] + "\n"


def _what(name: str) -> str:
    if name == FACTS:
        return "what was seen of hosts, engines, router and logs, which `--from` judges"
    return "the configuration" if name == CONFIG else f"the last {_LOG_LINES} lines at most"


def _without_secrets(value: Any, secrets: Collection[str]) -> Any:
    if isinstance(value, str):
        return redacted(value, secrets)
    if isinstance(value, list):
        return [_without_secrets(each, secrets) for each in value]
    if isinstance(value, dict):
        return {key: _without_secrets(each, secrets) for key, each in value.items()}
    return value


def load_bundle(folder: Path) -> PairFacts:
    """The facts in a bundle.

    Raises:
        BundleError: there is none, it is damaged, or a newer pdctl wrote it.
    """
    path = folder
    try:
        path = folder / FACTS if folder.is_dir() else folder
        if not path.is_file() and path.exists():  # reading a pipe may never end
            raise _damaged(path, "it is no regular file")
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise BundleError(
            f"there is no bundle: {error.strerror}",
            where=str(path),
            hints=["`pdctl doctor --save DIR` writes one"],
        ) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("kind") != _KIND:
        raise _damaged(path, f"it does not say that it is a {_KIND}")
    version = document.get("schema_version")
    if not isinstance(version, int):
        raise _damaged(path, "it has no schema version")
    if version > SCHEMA_VERSION:
        raise BundleError(
            f"a newer pdctl ({document.get('pdctl_version', 'unknown')}) wrote this bundle, in "
            f"version {version}",
            where=str(path),
            expected=f"version {SCHEMA_VERSION} or older",
            hints=["use that pdctl, or a newer one"],
        )
    try:
        return from_json(PairFacts, document.get("facts"))
    except BadAnswerError as error:
        raise _damaged(path, "; ".join(error.detail[:3])) from error


def _damaged(path: Path, why: str) -> BundleError:
    return BundleError(
        f"the bundle is damaged: {why}",
        where=str(path),
        expected="what `pdctl doctor --save` wrote",
    )
