"""What an acceptance run found: one result for each thing that was tried."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["pass", "fail", "skip"]

KIND = "pdctl acceptance"
SCHEMA_VERSION = 1
"""Raised when an older reader could no longer use a bundle."""


@dataclass(frozen=True)
class Found:
    """What came of one step.

    Attributes:
        said: one sentence.
        data: what it stands on, for the bundle; plain values.
    """

    status: Status
    said: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """A step, and what came of it.

    Attributes:
        seconds: how long it took; 0 for one that was not tried.
        over_budget: it was left out because the budget was spent.
    """

    id: str
    title: str
    found: Found
    seconds: float = 0.0
    over_budget: bool = False

    def as_dict(self) -> dict[str, Any]:
        """With what it stands on."""
        return {
            "id": self.id,
            "title": self.title,
            "status": self.found.status,
            "said": self.found.said,
            "seconds": round(self.seconds, 1),
            "over_budget": self.over_budget,
            "data": dict(self.found.data),
        }


@dataclass(frozen=True)
class Report:
    """A whole run.

    Attributes:
        environment: versions, model, processes, hosts.
        cells: what it measured of the version table.
        budget: what it might spend, and did.
        interrupted: it was ended before its last step.
    """

    name: str
    began_at: str
    results: Sequence[Result]
    environment: Mapping[str, Any]
    cells: Sequence[Mapping[str, Any]]
    budget: Mapping[str, Any]
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Nothing failed, and nothing was left out for want of budget, or of time to the end."""
        bad = any(each.found.status == "fail" or each.over_budget for each in self.results)
        return not bad and not self.interrupted

    def summary(self) -> dict[str, int]:
        """How many results of each kind."""
        kinds: tuple[Status, ...] = ("pass", "fail", "skip")
        return {kind: sum(each.found.status == kind for each in self.results) for kind in kinds}

    def as_dict(self) -> dict[str, Any]:
        """The document of a bundle."""
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "began_at": self.began_at,
            "ok": self.ok,
            "summary": self.summary(),
            "budget": dict(self.budget),
            "results": [each.as_dict() for each in self.results],
            "cells": [dict(cell) for cell in self.cells],
            "environment": dict(self.environment),
        }
