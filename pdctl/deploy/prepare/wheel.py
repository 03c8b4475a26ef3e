"""The running pdctl as a wheel, so that routers on other hosts are the very same program."""

import base64
import hashlib
import io
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata, resources
from importlib.resources.abc import Traversable
from pathlib import Path

from pdctl import __version__
from pdctl.base.paths import templates_dir

_LEFT_OUT = frozenset({"__pycache__", "py.typed~"})
_LONG_AGO = (1980, 1, 1, 0, 0, 0)
_WHEEL = "Wheel-Version: 1.0\nGenerator: pdctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_name() -> str:
    """The file's name."""
    return f"pdctl-{__version__}-py3-none-any.whl"


def build_wheel() -> bytes:
    """The same bytes for the same pdctl."""
    files = dict(_package(resources.files("pdctl"), "pdctl"))
    templates = templates_dir()
    for path in sorted(templates.rglob("*")):
        if path.is_file():
            files[f"pdctl/templates/{path.relative_to(templates).as_posix()}"] = path.read_bytes()
    info = f"pdctl-{__version__}.dist-info"
    files[f"{info}/METADATA"] = _metadata().encode()
    files[f"{info}/WHEEL"] = _WHEEL.encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\npdctl = pdctl.__main__:main\n"
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _LONG_AGO)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, files[name])
    return packed.getvalue()


def _package(folder: Traversable | Path, name: str) -> Iterator[tuple[str, bytes]]:
    for each in folder.iterdir():
        if each.name in _LEFT_OUT or each.name == "templates":
            continue
        if each.is_dir():
            yield from _package(each, f"{name}/{each.name}")
        else:
            yield f"{name}/{each.name}", each.read_bytes()


def _metadata() -> str:
    lines = ["Metadata-Version: 2.1", "Name: pdctl", f"Version: {__version__}"]
    return "\n".join([*lines, *_requirements()]) + "\n"


def _requirements() -> Iterator[str]:
    """Of a checkout as it is now: what was installed from it may have had other ones."""
    checkout = templates_dir().with_name("pyproject.toml")
    if not checkout.exists():
        about = metadata.metadata("pdctl")
        for key in ("Requires-Python", "Provides-Extra", "Requires-Dist"):
            yield from (f"{key}: {value}" for value in about.get_all(key) or ())
        return
    project = tomllib.loads(checkout.read_text())["project"]
    yield f"Requires-Python: {project['requires-python']}"
    yield from (f"Requires-Dist: {each}" for each in project["dependencies"])
    for extra, needs in project["optional-dependencies"].items():
        yield f"Provides-Extra: {extra}"
        for need in needs:
            name, _, when = need.partition(";")
            marker = f"({when.strip()}) and extra == '{extra}'" if when else f"extra == '{extra}'"
            yield f"Requires-Dist: {name.strip()}; {marker}"


def _record(files: dict[str, bytes], itself: str) -> bytes:
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        lines.append(f"{name},sha256={digest.decode()},{len(files[name])}\n")
    return "".join([*lines, f"{itself},,\n"]).encode()
