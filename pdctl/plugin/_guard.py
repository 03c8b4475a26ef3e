"""Applying a lever without ever endangering the engine.

A lever names the modules it changes. Each is changed at the moment vLLM itself imports it: that
keeps the lever out of processes that never use the module, and keeps vLLM's own import order
(importing NIXL early, for one, makes vLLM skip its ``UCX_RCACHE_MAX_UNRELEASED`` workaround).
"""

import logging
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import _imports

LOGGER = logging.getLogger("vllm.pdctl")
"""A child of vLLM's logger, so it has that one's handlers, format and level.

The front end of 0.32.0 configures that only after it has called the plugin: what is said at that
moment (off, no such module) is lost there, and seen from the engine core, which says the same.
"""

APPLIED = "applied"
NOT_NEEDED = "not-needed"
NOT_APPLICABLE = "not-applicable"
OFF = "off"
WAITING = "waiting"
"""This process has not imported the module yet, and perhaps never will."""

ALL_OF = (NOT_APPLICABLE, WAITING, APPLIED, NOT_NEEDED)
"""The state of a lever that needs every one of its modules: the first of these that occurs."""

ANY_OF = (APPLIED, NOT_NEEDED, WAITING, NOT_APPLICABLE)
"""The same for a lever whose modules are alternatives to each other."""

_MARK = "__pdctl_patched__"


@dataclass(frozen=True)
class Outcome:
    """What became of a lever, or of one of its modules, in this process."""

    state: str
    why: str


class Declined(Exception):  # noqa: N818 - an answer, not an error
    """A lever does not apply itself; the message says why."""

    state = NOT_APPLICABLE


class NotApplicable(Declined):
    """This vLLM does not have the shape that the lever knows."""


class NotNeeded(Declined):
    """This vLLM does by itself what the lever would add."""

    state = NOT_NEEDED


class Off(Declined):
    """Nobody asked for the lever."""

    state = OFF


@dataclass(frozen=True)
class Target:
    """One module that a lever changes; ``patch`` returns what it did, or raises Declined."""

    module: str
    patch: Callable[[types.ModuleType], str]


@dataclass(frozen=True)
class Lever:
    """What a lever changes, and how the outcomes of its modules make up its own."""

    targets: tuple[Target, ...]
    order: tuple[str, ...] = ALL_OF


Build = Callable[[Mapping[str, str]], Lever]
"""Makes a lever from the environment, or raises Declined."""

Report = Callable[[Mapping[str, Outcome]], None]


@dataclass
class Guard:
    """Applies levers, logs each outcome once and reports all of them whenever one changes."""

    report: Report
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def apply(self, name: str, build: Build, env: Mapping[str, str]) -> None:
        """Bring one lever into force, now or when its modules are imported."""
        try:
            lever = build(env)
        except Exception as error:
            self._settle(name, _outcome_of(error))
            return
        by_module = {target.module: _prospect(target.module) for target in lever.targets}
        for target in lever.targets:
            self._watch(name, lever, target, by_module)
        self._settle(name, _combined(lever, by_module))

    def _watch(
        self, name: str, lever: Lever, target: Target, by_module: dict[str, Outcome]
    ) -> None:
        def patch(module: types.ModuleType) -> None:
            by_module[target.module] = _attempt(target, module)
            self._settle(name, _combined(lever, by_module))

        _imports.when_imported(target.module, key=name, then=patch)

    def _settle(self, name: str, outcome: Outcome) -> None:
        if self.outcomes.get(name) == outcome:
            return
        self.outcomes[name] = outcome
        # What every process would say about levers that do not concern it is for the status only.
        level = logging.DEBUG if outcome.state in (WAITING, OFF) else logging.INFO
        LOGGER.log(level, "pdctl plugin: %s %s: %s", name, outcome.state, outcome.why)
        try:
            self.report(self.outcomes)
        except Exception as error:  # this may run inside an import of vLLM's
            LOGGER.warning("pdctl plugin: cannot report the state of the levers: %s", error)


def is_patched(owner: object, name: str) -> bool:
    """Tell whether :func:`replace` has already been here."""
    return name in vars(owner).get(_MARK, ())


def replace(owner: object, name: str, value: object) -> None:
    """Set an attribute of a class or module and remember it, so that nothing is wrapped twice."""
    setattr(owner, name, value)
    setattr(owner, _MARK, (*vars(owner).get(_MARK, ()), name))


def attribute(owner: object, name: str) -> Any:
    """Get an attribute that the lever relies on."""
    try:
        return getattr(owner, name)
    except AttributeError:
        where = getattr(owner, "__name__", type(owner).__name__)
        raise NotApplicable(f"{where} has no {name}") from None


def mentions(function: object, name: str) -> bool:
    """Tell whether a function's own code uses a name: as attribute, argument, variable or text."""
    code = getattr(function, "__code__", None)
    return isinstance(code, types.CodeType) and _code_mentions(code, name)


def _code_mentions(code: types.CodeType, name: str) -> bool:
    if name in (*code.co_names, *code.co_varnames, *code.co_freevars):
        return True
    return any(_constant_mentions(constant, name) for constant in code.co_consts)


def _constant_mentions(constant: object, name: str) -> bool:
    if isinstance(constant, types.CodeType):  # a nested function
        return _code_mentions(constant, name)
    if isinstance(constant, tuple):  # the names of keyword arguments in a call
        return name in constant
    return constant == name


def _attempt(target: Target, module: types.ModuleType) -> Outcome:
    try:
        return Outcome(APPLIED, target.patch(module))
    except Exception as error:
        return _outcome_of(error)


def _outcome_of(error: Exception) -> Outcome:
    if isinstance(error, Declined):
        return Outcome(error.state, str(error))
    return Outcome(NOT_APPLICABLE, f"unexpected {type(error).__name__}: {error}")


def _prospect(module: str) -> Outcome:
    if _imports.exists(module):
        return Outcome(WAITING, f"{module} is not imported in this process")
    return Outcome(NOT_APPLICABLE, f"there is no module {module}")


def _combined(lever: Lever, by_module: Mapping[str, Outcome]) -> Outcome:
    state = min((each.state for each in by_module.values()), key=lever.order.index)
    reasons = [each.why for each in by_module.values() if each.state == state]
    return Outcome(state, "; ".join(reasons))
