"""Acting at the moment when a module is imported, without importing it oneself."""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

Callback = Callable[[types.ModuleType], None]

_waiting: dict[str, dict[str, Callback]] = {}


def exists(name: str) -> bool:
    """Tell whether a module could be imported, without importing it or any of its parents."""
    try:
        return name in sys.modules or _is_located(name)
    except Exception:
        return True  # cannot tell; if it is never imported, nothing happens either


def when_imported(name: str, key: str, then: Callback) -> None:
    """Call ``then`` with the module: now if it is loaded, else right after it was executed.

    ``key`` names the caller; asking again replaces the earlier request.
    """
    _waiting.setdefault(name, {})[key] = then
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    loaded = sys.modules.get(name)
    if loaded is not None:
        then(loaded)


def _is_located(name: str) -> bool:
    search: Sequence[str] | None = None
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        dotted = ".".join(parts[:depth])
        loaded = sys.modules.get(dotted)
        if loaded is not None:  # also serves for parents that PathFinder would not find
            search = list(getattr(loaded, "__path__", ()))
            continue
        spec = importlib.machinery.PathFinder.find_spec(dotted, search)
        if spec is None:
            return False
        search = spec.submodule_search_locations or ()
    return True


class _Finder(importlib.abc.MetaPathFinder):
    """Stands first in ``sys.meta_path``; lets the others find, and adds a step after loading."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in _waiting:
            return None
        spec = self._found_by_others(fullname, path, target)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Loader(spec.loader)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        for finder in list(sys.meta_path):
            find_spec = getattr(finder, "find_spec", None)
            if isinstance(finder, _Finder) or find_spec is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find_spec(fullname, path, target)
            if spec is not None:
                return spec
        return None


class _Loader(importlib.abc.Loader):
    """Loads through the real loader, puts that back in its place, then calls who waited."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._real.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        # Nobody who looks at the module from now on (inspect, pkgutil, reload) meets this class.
        module.__loader__ = self._real
        if module.__spec__ is not None:
            module.__spec__.loader = self._real
        self._real.exec_module(module)
        for then in list(_waiting.get(module.__name__, {}).values()):
            then(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)
