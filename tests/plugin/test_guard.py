"""Applying levers: what is decided, what is said, and that nothing escapes."""

import importlib
import logging
from collections.abc import Mapping
from types import ModuleType

import pytest

from pdctl.plugin import _guard
from pdctl.plugin._guard import Guard, Lever, NotApplicable, NotNeeded, Off, Outcome, Target
from tests.plugin.conftest import InstallEngine


def _ignore(outcomes: Mapping[str, Outcome]) -> None:
    del outcomes


def _fine(module: ModuleType) -> str:
    return f"changed {module.__name__}"


def _raises(error: Exception) -> _guard.Build:
    def build(env: Mapping[str, str]) -> Lever:
        raise error

    return build


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="vllm.pdctl")
    return caplog


def test_applied_when_the_module_comes(
    install_engine: InstallEngine, log: pytest.LogCaptureFixture
) -> None:
    install_engine({"vllm/a.py": ""})
    reports: list[dict[str, str]] = []
    guard = Guard(report=lambda all_: reports.append({k: v.state for k, v in all_.items()}))
    guard.apply("x", lambda env: Lever((Target("vllm.a", _fine),)), {})
    assert log.messages == []
    importlib.import_module("vllm.a")
    assert log.messages == ["pdctl plugin: x applied: changed vllm.a"]
    assert reports == [{"x": "waiting"}, {"x": "applied"}]


def test_a_lever_over_two_modules_says_one_thing(
    install_engine: InstallEngine, log: pytest.LogCaptureFixture
) -> None:
    install_engine({"vllm/a.py": "", "vllm/b.py": ""})
    guard = Guard(report=_ignore)
    guard.apply("x", lambda env: Lever((Target("vllm.a", _fine), Target("vllm.b", _fine))), {})
    importlib.import_module("vllm.a")
    assert guard.outcomes["x"] == Outcome("waiting", "vllm.b is not imported in this process")
    importlib.import_module("vllm.b")
    assert log.messages == ["pdctl plugin: x applied: changed vllm.a; changed vllm.b"]


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (Off("unset"), "off", "unset"),
        (NotApplicable("odd value"), "not-applicable", "odd value"),
        (KeyError("k"), "not-applicable", "unexpected KeyError: 'k'"),
    ],
)
def test_a_lever_that_cannot_be_made(error: Exception, state: str, why: str) -> None:
    guard = Guard(report=_ignore)
    guard.apply("x", _raises(error), {})
    assert guard.outcomes == {"x": Outcome(state, why)}


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (NotNeeded("it does"), "not-needed"),
        (NotApplicable("it changed"), "not-applicable"),
        (RuntimeError("boom"), "not-applicable"),
        (RecursionError("deep"), "not-applicable"),
    ],
)
def test_a_patch_that_raises_never_disturbs_the_import(
    install_engine: InstallEngine, log: pytest.LogCaptureFixture, error: Exception, state: str
) -> None:
    install_engine({"vllm/a.py": "value = 1"})

    def patch(module: ModuleType) -> str:
        raise error

    guard = Guard(report=_ignore)
    guard.apply("x", lambda env: Lever((Target("vllm.a", patch),)), {})
    assert importlib.import_module("vllm.a").value == 1
    assert guard.outcomes["x"].state == state
    assert len(log.messages) == 1
    assert str(error) in log.messages[0]


def test_a_report_that_raises_is_logged(
    install_engine: InstallEngine, log: pytest.LogCaptureFixture
) -> None:
    install_engine({"vllm/a.py": ""})

    def report(outcomes: Mapping[str, Outcome]) -> None:
        raise ValueError("no pen")

    guard = Guard(report=report)
    guard.apply("x", lambda env: Lever((Target("vllm.a", _fine),)), {})
    importlib.import_module("vllm.a")
    assert guard.outcomes["x"].state == "applied"
    assert any("no pen" in message for message in log.messages)


def test_what_is_missing_is_not_waited_for(
    install_engine: InstallEngine, log: pytest.LogCaptureFixture
) -> None:
    install_engine({"vllm/a.py": ""})
    guard = Guard(report=_ignore)
    guard.apply("x", lambda env: Lever((Target("vllm.gone", _fine),)), {})
    assert log.messages == ["pdctl plugin: x not-applicable: there is no module vllm.gone"]


@pytest.mark.parametrize(
    ("order", "states", "expected"),
    [
        (_guard.ALL_OF, ("applied", "not-needed"), "applied"),
        (_guard.ALL_OF, ("not-needed", "not-needed"), "not-needed"),
        (_guard.ALL_OF, ("applied", "waiting"), "waiting"),
        (_guard.ALL_OF, ("applied", "not-applicable"), "not-applicable"),
        (_guard.ANY_OF, ("applied", "not-applicable"), "applied"),
        (_guard.ANY_OF, ("not-applicable", "waiting"), "waiting"),
        (_guard.ANY_OF, ("not-applicable", "not-applicable"), "not-applicable"),
    ],
)
def test_how_modules_make_up_a_lever(
    order: tuple[str, ...], states: tuple[str, ...], expected: str
) -> None:
    by_module = {str(i): Outcome(state, f"why {state}") for i, state in enumerate(states)}
    combined = _guard._combined(Lever((), order), by_module)
    assert combined.state == expected
    assert set(combined.why.split("; ")) == {f"why {expected}"}


class _Subject:
    value = 1

    def by_keyword(self) -> dict[str, int]:
        return dict(handle=1)  # noqa: C408 - the keyword is the point

    def by_attribute(self) -> int:
        return self.handle  # type: ignore[attr-defined,no-any-return]

    def in_a_nested_function(self) -> object:
        return lambda handle: handle

    def not_at_all(self) -> int:
        return 1


class _Child(_Subject):
    pass


def test_mentions() -> None:
    assert _guard.mentions(_Subject.by_keyword, "handle")
    assert _guard.mentions(_Subject.by_attribute, "handle")
    assert _guard.mentions(_Subject.in_a_nested_function, "handle")
    assert not _guard.mentions(_Subject.not_at_all, "handle")
    assert not _guard.mentions(len, "handle")


def test_replace_is_remembered_by_owner_and_name() -> None:
    class Owner(_Subject):
        pass

    _guard.replace(Owner, "value", 2)
    assert Owner.value == 2
    assert _guard.is_patched(Owner, "value")
    assert not _guard.is_patched(Owner, "not_at_all")
    assert not _guard.is_patched(_Child, "value")

    class Grandchild(Owner):
        pass

    assert not _guard.is_patched(Grandchild, "value")
