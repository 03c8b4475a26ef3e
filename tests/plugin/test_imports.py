"""Acting when a module is imported."""

import importlib
import inspect
import pkgutil
import sys
from types import ModuleType

import pytest

from pdctl.plugin import _imports
from tests.plugin.conftest import InstallEngine


def test_called_right_after_the_import(install_engine: InstallEngine) -> None:
    install_engine({"vllm/a/b.py": "value = 1"})
    seen: list[int] = []
    _imports.when_imported("vllm.a.b", "test", lambda module: seen.append(module.value))
    assert seen == []
    assert "vllm" not in sys.modules

    module = importlib.import_module("vllm.a.b")

    assert seen == [1]
    assert inspect.getsource(module) == "value = 1\n"
    assert type(module.__loader__).__module__.startswith(("importlib", "_frozen_importlib"))
    assert module.__spec__ is not None
    assert module.__spec__.loader is module.__loader__
    assert pkgutil.get_data("vllm.a.b", "b.py") == b"value = 1"


def test_called_at_once_if_loaded(install_engine: InstallEngine) -> None:
    install_engine({"vllm/a.py": ""})
    module = importlib.import_module("vllm.a")
    seen: list[ModuleType] = []
    _imports.when_imported("vllm.a", "test", seen.append)
    assert seen == [module]


def test_called_again_after_a_reload(install_engine: InstallEngine) -> None:
    install_engine({"vllm/a.py": ""})
    seen: list[ModuleType] = []
    _imports.when_imported("vllm.a", "test", seen.append)
    importlib.reload(importlib.import_module("vllm.a"))
    assert len(seen) == 2


def test_the_same_key_replaces_another_adds(install_engine: InstallEngine) -> None:
    install_engine({"vllm/a.py": ""})
    seen: list[str] = []
    _imports.when_imported("vllm.a", "one", lambda module: seen.append("never"))
    _imports.when_imported("vllm.a", "one", lambda module: seen.append("one"))
    _imports.when_imported("vllm.a", "two", lambda module: seen.append("two"))
    importlib.import_module("vllm.a")
    assert seen == ["one", "two"]
    assert sum(isinstance(finder, _imports._Finder) for finder in sys.meta_path) == 1


def test_a_failing_import_stays_a_failing_import(install_engine: InstallEngine) -> None:
    install_engine({"vllm/a.py": "import no_such_module"})
    seen: list[ModuleType] = []
    _imports.when_imported("vllm.a", "test", seen.append)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        importlib.import_module("vllm.a")
    with pytest.raises(ModuleNotFoundError, match=r"vllm\.b"):
        importlib.import_module("vllm.b")
    assert seen == []


def test_exists_without_importing(install_engine: InstallEngine) -> None:
    install_engine({"vllm/a/b.py": "raise SystemExit", "vllm/__init__.py": "raise SystemExit"})
    assert _imports.exists("vllm.a.b")
    assert not _imports.exists("vllm.a.c")
    assert not _imports.exists("vllm.no.such")
    assert not _imports.exists("vllm.a.b.c")
    assert not _imports.exists("no_such_package_at_all.x")
    assert "vllm" not in sys.modules


def test_exists_below_a_loaded_parent(install_engine: InstallEngine) -> None:
    install_engine({"vllm/a/b.py": "", "vllm/__init__.py": ""})
    importlib.import_module("vllm")
    assert _imports.exists("vllm.a.b")
    assert not _imports.exists("vllm.x.b")
