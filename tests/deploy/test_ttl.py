"""In which order TTLs change, and what stays when something fails on the way."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pdctl.base import paths
from pdctl.base.errors import BadAnswerError, PdctlError, UnreachableError
from pdctl.deploy import ttl
from pdctl.deploy.ttl import Keys, set_ttl
from pdctl.deploy.world import World
from pdctl.observe.ttl import KeptFor, RouterTtl
from pdctl.state.model import DeploymentState, Intervals
from pdctl.state.store import StateStore
from tests.state.samples import STATE

FILE = PurePosixPath("/control/decoder_ttl.json")
START = Intervals(480.0, 472.0)


class Here:
    """A host that has one file, and the engine that reads it."""

    name = "h"

    def __init__(self, told: list[str]) -> None:
        self.told = told
        self.files: dict[PurePosixPath, bytes] = {}
        self.dead: set[int] = set()

    def alive(self, ref: Any) -> bool:
        return ref.pid not in self.dead

    def read_file(self, path: PurePosixPath, *, limit: int | None = None) -> bytes | None:
        return self.files.get(path)

    def write_file(self, path: PurePosixPath, content: bytes, *, mode: int = 0o644) -> None:
        self.told.append(f"decode {content.decode().strip()}")
        self.files[path] = content

    def remove_tree(self, path: PurePosixPath) -> None:
        self.files.pop(path, None)


class Deployed:
    """One of each, whose answers a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[str] = []
        self.host = Here(self.told)
        self.router_ttl = 472.0
        self.refuses: PdctlError | None = None
        self.keeps: float | None = None
        processes = {
            name: replace(
                record,
                env={"PDCTL_TTL_FILE": str(FILE)} if record.role == "decode" else {},
                ref=replace(_ref(), pid=number),
                host="h",
            )
            for number, (name, record) in enumerate(_records().items(), 1)
        }
        self.state = replace(STATE, name="demo", kv=START, live_ttl=None, processes=processes)
        self.store = StateStore("demo")
        monkeypatch.setattr(ttl, "ask_routers", self._ask)
        monkeypatch.setattr(ttl, "read_kept_for", self._kept)

    async def _ask(
        self, routers: list[tuple[str, str]], key: str | None, new: float | None = None
    ) -> list[RouterTtl]:
        if new is not None and self.refuses is None:
            self.told += [f"router {new:g}" for _ in routers]
            self.router_ttl = new
        error = self.refuses if new is not None else None
        return [RouterTtl(*each, None if error else self.router_ttl, error) for each in routers]

    async def _kept(self, *args: Any, **kwargs: Any) -> KeptFor:
        content = self.host.files[FILE]
        seconds = self.keeps if self.keeps is not None else float(content.split(b":")[1][:-2])
        return KeptFor(seconds - 0.1, seconds)

    def set(self, decoder: float) -> None:
        world = World({"h": self.host})  # type: ignore[dict-item]
        wanted = Intervals(decoder, decoder - 8)
        set_ttl(world, self.store, self.now, wanted, Keys(), "m")

    @property
    def now(self) -> DeploymentState:
        return self.store.load() or self.state


def _ref() -> Any:
    return next(each.ref for each in STATE.processes.values() if each.ref is not None)


def _records() -> Mapping[str, Any]:
    some = next(iter(STATE.processes.values()))
    return {
        f"{role}-0": replace(some, name=f"{role}-0", role=role, index=0)
        for role in ("prefill", "decode", "router")
    }


@pytest.fixture
def deployed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Deployed:
    monkeypatch.setenv(paths.STATE_DIR_ENV, str(tmp_path))
    return Deployed(monkeypatch)


def test_lowering_tells_the_routers_first_and_raising_decode(deployed: Deployed) -> None:
    deployed.set(60)
    assert deployed.told == ["router 52", 'decode {"decoder_ttl": 60}']
    assert deployed.now.ttl == Intervals(60, 52)
    deployed.told.clear()
    deployed.set(900)
    assert deployed.told == ['decode {"decoder_ttl": 900}', "router 892"]
    assert deployed.now.ttl == Intervals(900, 892)
    assert deployed.now.kv == START


def test_what_the_routers_say_counts_and_not_what_was_recorded(deployed: Deployed) -> None:
    deployed.router_ttl = 20.0
    deployed.set(60)
    assert deployed.told == ['decode {"decoder_ttl": 60}', "router 52"]


def test_the_configurations_own_values_are_no_change(deployed: Deployed) -> None:
    deployed.set(60)
    deployed.set(480)
    assert deployed.now.live_ttl is None


def test_what_was_written_into_the_file_is_the_configurations_own(deployed: Deployed) -> None:
    deployed.set(60)
    ttl.note_written(deployed.store, Intervals(60, 52))
    assert (deployed.now.kv, deployed.now.live_ttl) == (Intervals(60, 52), None)
    assert deployed.now.ttl == Intervals(60, 52)


def test_a_router_that_refuses_leaves_decode_as_it_was_or_longer(deployed: Deployed) -> None:
    deployed.refuses = UnreachableError("no answer")
    with pytest.raises(UnreachableError):
        deployed.set(60)
    assert deployed.told == []
    deployed.told.clear()
    with pytest.raises(UnreachableError):
        deployed.set(900)
    assert deployed.told == ['decode {"decoder_ttl": 900}']
    assert deployed.now.ttl == Intervals(900, 472)


def test_a_decode_that_does_not_take_it_gets_its_file_back(deployed: Deployed) -> None:
    deployed.keeps = 480.0
    with pytest.raises(BadAnswerError, match="still keeps blocks for about 480 s, not 900 s"):
        deployed.set(900)
    assert deployed.host.files == {}
    assert deployed.router_ttl == 472.0
    assert deployed.store.load() is None


def test_what_does_not_run_is_not_told(deployed: Deployed) -> None:
    deployed.host.dead = {1, 3}
    deployed.set(60)
    assert deployed.told == ['decode {"decoder_ttl": 60}']
