"""The plugin as a folder that goes on an engine's ``PYTHONPATH``.

Nothing is installed into the environment that the user's vLLM lives in: the folder holds
``pdctl.plugin``, a stub of ``pdctl`` and the metadata by which ``importlib.metadata``, and so
vLLM, finds the entry point. Its name carries a digest of what is in it: engines of different
pdctl versions on one host do not meet, and a copy elsewhere can be compared by name.
"""

import base64
import hashlib
import importlib.resources
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from pdctl import __version__

_STUB = '"""The part of pdctl that runs inside vLLM: see pdctl.plugin."""\n'
_ENTRY_POINTS = "[vllm.general_plugins]\npdctl = pdctl.plugin:register\n"
_METADATA = f"""\
Metadata-Version: 2.1
Name: pdctl-plugin
Version: {__version__}
Summary: What pdctl runs inside vLLM
"""


def bundle_files() -> dict[str, bytes]:
    """Return the content of every file of the bundle by its path in it."""
    files = {"pdctl/__init__.py": _STUB.encode()}
    for source in importlib.resources.files("pdctl").joinpath("plugin").iterdir():
        if source.name.endswith(".py"):
            files[f"pdctl/plugin/{source.name}"] = source.read_bytes()
    info = f"pdctl_plugin-{__version__}.dist-info"
    files[f"{info}/METADATA"] = _METADATA.encode()
    files[f"{info}/entry_points.txt"] = _ENTRY_POINTS.encode()
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    return dict(sorted(files.items()))


def bundle_digest(files: dict[str, bytes]) -> str:
    """Return a SHA-256 over the paths and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0{len(files[path])}\0".encode())
        digest.update(files[path])
    return digest.hexdigest()


def bundle_name(files: dict[str, bytes]) -> str:
    """Return the name of the folder that holds these files."""
    return f"plugin-{bundle_digest(files)[:12]}"


def write_bundle(root: Path) -> Path:
    """Put the bundle under ``root`` and return its folder, which goes on ``PYTHONPATH``.

    Appears complete or not at all. A folder that is there already and right is left alone; one
    with missing, changed or additional files is replaced.
    """
    files = bundle_files()
    final = root / bundle_name(files)
    if is_intact(final, files):
        return final
    root.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=".plugin-", dir=root))
    try:
        _write(scratch / "new", files)
        _swap(scratch / "new", final, aside=scratch / "old", files=files)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return final


def is_intact(folder: Path, files: dict[str, bytes]) -> bool:
    """Tell whether a folder holds exactly these files (and bytecode that Python adds)."""
    try:
        present = {
            path.relative_to(folder).as_posix(): path
            for path in folder.rglob("*")
            if path.is_file() and path.parent.name != "__pycache__"
        }
        return present.keys() == files.keys() and all(
            path.read_bytes() == files[name] for name, path in present.items()
        )
    except OSError:
        return False


def _swap(new: Path, final: Path, aside: Path, files: dict[str, bytes]) -> None:
    # A folder cannot be renamed over one that is not empty, so a wrong one steps aside first.
    if final.exists() and not is_intact(final, files):
        os.rename(final, aside)
    try:
        os.rename(new, final)
    except OSError:
        if not is_intact(final, files):  # if it is, another process was faster
            raise


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _record(files: dict[str, bytes], itself: str) -> bytes:
    """Return the content of RECORD, as the wheel format has it (PEP 376, PEP 427)."""
    lines = [f"{path},sha256={_urlsafe(files[path])},{len(files[path])}" for path in sorted(files)]
    return _lines([*lines, f"{itself},,"])


def _urlsafe(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _lines(lines: Iterable[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()
