"""What is sent to a host at login: the far side with the modules it needs, as one script.

The command line only reads it from the connection: no file is written, nothing is in argv, and the
quoting is good for every login shell.
"""

import functools
import importlib.util
import zlib
from pathlib import Path

MODULES = (
    "pdctl",
    "pdctl.base",
    "pdctl.base.exits",
    "pdctl.base.errors",
    "pdctl.base.command",
    "pdctl.base.process",
    "pdctl.targets",
    "pdctl.targets.base",
    "pdctl.targets.piped",
    "pdctl.targets.procfs",
    "pdctl.targets.ports",
    "pdctl.targets.units",
    "pdctl.targets.local",
    "pdctl.targets.ssh",
    "pdctl.targets.ssh.claim",
    "pdctl.targets.ssh.frames",
    "pdctl.targets.ssh.far",
)
"""In the order they need each other."""

USUAL = "/usr/bin/python3"
"""Tried before whatever else is called `python3`: shims of version managers take a second."""

_FITS = "import sys;sys.exit(sys.version_info<(3,9))"

TOO_OLD = "pdctl needs Python 3.9 or newer"

_FIRST = "import sys,zlib;f=sys.stdin.buffer;exec(zlib.decompress(f.read(int(f.readline()))))"

# Annotations are not looked at, so that modules for Python 3.11 load in 3.9.
_SCRIPT = """\
import sys
if sys.version_info < (3, 9):
    sys.exit("{too_old}, and this is " + sys.version.split()[0])
import __future__, types
for name, text in {modules}:
    module = types.ModuleType(name)
    module.__path__ = []
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    flags = __future__.annotations.compiler_flag
    exec(compile(text, "<" + name + ">", "exec", flags, True), module.__dict__)
sys.modules["pdctl.targets.ssh.far"].main({name})
"""


def command_line(become: str = "") -> str:
    """What the login shell is told to run, whichever shell that is.

    Args:
        become: what to put in front to be another user, such as `sudo -n`.
    """
    find = f'for p in {USUAL} python3; do $p -S -c "{_FITS}" 2>/dev/null && break; done'
    start = f'exec $p -I -S -X utf8 -c "{_FIRST}"'
    return f"exec {become + ' ' if become else ''}/bin/sh -c '{find}; {start}'"


def first_words(name: str) -> bytes:
    """What to send first.

    Args:
        name: how messages name the host.
    """
    script = _SCRIPT.format(too_old=TOO_OLD, modules=_modules(), name=repr(name))
    packed = zlib.compress(script.encode(), 6)
    return b"%d\n" % len(packed) + packed


@functools.cache
def _modules() -> str:
    return repr([(name, _source(name)) for name in MODULES])


def _source(name: str) -> str:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text()
