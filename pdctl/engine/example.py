"""Upstream's example proxy: where its file is, what it needs, and what it cannot do.

Read in vLLM 0.33.0; what is wrong with it there is FACTS T10.
"""

import tarfile
from collections.abc import Sequence
from pathlib import Path, PurePath

from pdctl.base.command import Command, command
from pdctl.base.errors import NotFoundError
from pdctl.engine.ttl import MARGIN_S

FILE_NAME = "disagg_proxy_multiturn.py"
PATH = f"examples/disaggregated/disaggregated_serving/{FILE_NAME}"
"""In a checkout."""
MODULES = ("httpx", "fastapi", "uvicorn")
KEY_ENV = "OPENAI_API_KEY"
"""Where it reads the engines' key."""
TTL_S = 450.0
"""How long it offers a handle; it has no option for it."""
SHORTEST_DECODER_TTL_S = TTL_S + MARGIN_S
LIMITS = (
    "it compares no tokens: a turn that is not exactly the last one continued gets wrong answers",
    f"it offers handles for {TTL_S:g} s, whatever the configuration says",
    "it keeps them in one process: a restart or a second router loses or mixes them",
    "it makes whole answers of text only: no tool calls, no reasoning, no usage",
    "it passes handles on to clients, and takes theirs",
    "it tries nothing again: what an engine refuses or breaks off is an HTTP 500 or a cut stream",
    "it knows no tenants and asks for no API keys",
)
"""What to know before it serves anybody, worst first."""

_LARGEST = 2**20


def is_archive(source: PurePath) -> bool:
    """Whether the file has to be taken out of a source distribution first."""
    return source.name.endswith((".tar.gz", ".tgz"))


def read_from_archive(source: Path) -> bytes:
    """The one file, out of vLLM's source distribution; nothing else of it is unpacked.

    Raises:
        NotFoundError: it cannot be read, or there is no such file in it.
    """
    expected = f"a source distribution of vLLM, which has {PATH}"
    try:
        with tarfile.open(source, "r|gz") as archive:
            for member in archive:
                if PurePath(member.name).name == FILE_NAME and member.isfile():
                    file = archive.extractfile(member)
                    return file.read(_LARGEST) if file else b""
    except (OSError, EOFError, tarfile.TarError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise NotFoundError(
            f"`router.source` cannot be read: {reason}", where=str(source), expected=expected
        ) from error
    raise NotFoundError(
        f"there is no {FILE_NAME} in `router.source`", where=str(source), expected=expected
    )


def missing_command(python: str) -> Command:
    """Prints the modules that the proxy imports and this interpreter does not have."""
    find = (
        "import sys, importlib.util as u; print(*[m for m in sys.argv[1:] if not u.find_spec(m)])"
    )
    return command(python, "-I", "-c", find, *MODULES)


def missing_modules(modules: Sequence[str]) -> str:
    """That they are missing, and what to do, in a sentence."""
    names = " and ".join(f"`{name}`" for name in modules)
    return (
        f"the example proxy needs {names}, which the engine's Python does not have: "
        f"`pip install {' '.join(modules)}` there, or write `router.kind: pdctl`"
    )
