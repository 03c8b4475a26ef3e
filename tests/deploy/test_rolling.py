"""Replacing engines for real: tiny servers, and a router that says which engines it was told of."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from pdctl.base import paths
from pdctl.base.command import Command
from pdctl.base.errors import PermissionDeniedError, TemporaryError, UsageError
from pdctl.base.events import StepDone, StepFailed
from pdctl.base.process import ProcessSpec, RoleName, marked
from pdctl.config.model import Config
from pdctl.deploy import drains
from pdctl.plan.build import BY_UP
from pdctl.render.model import NEW_AT_EVERY_START, Chosen, Deployment, RenderedDir
from tests.deploy.pair import NAME, SERVER, Pair, config, fast_clock, names
from tests.deploy.test_killed import killed, killer
from tests.targets.programs import wait_until

ENGINES = ("prefill-0", "prefill-1", "decode-0", "decode-1")
SWITCH = str(Path(__file__).with_name("switch.py"))
ROLES: tuple[tuple[str, RoleName, int], ...] = (
    ("prefill-0", "prefill", 0),
    ("prefill-1", "prefill", 1),
    ("decode-0", "decode", 0),
    ("decode-1", "decode", 1),
)


@dataclass
class Fleet(Pair):
    """Two prefill and two decode servers behind one router.

    Attributes:
        revision: what all engines must have in common.
    """

    revision: str = "r1"
    journal: Path = field(default_factory=lambda: Path(paths.state_root()) / "journal" / "puts")

    def render(self, chosen: Chosen) -> Deployment:
        place = PurePosixPath(paths.deployment_dir(NAME))
        temp = PurePosixPath(paths.temp_dir(NAME))
        engines = [self._engine(*each, chosen, temp) for each in ROLES]
        words = [word for e in engines for word in (f"--{e.role}", e.url)]
        port = chosen.ports.get("router-0", 0)
        argv = (sys.executable, "-I", "-S", SWITCH, "--port", str(port))
        router = self._spec(
            "router", 0, port, (*argv, "--journal", str(self.journal), *words), temp
        )
        return Deployment(
            name=NAME,
            processes=tuple(marked(spec, place) for spec in (*engines, router)),
            directories=(RenderedDir("localhost", place), RenderedDir("localhost", temp)),
            files=(),
            recipe=None,
            model_step=None,
        )

    def _engine(
        self, name: str, role: RoleName, index: int, chosen: Chosen, temp: PurePosixPath
    ) -> ProcessSpec:
        port = chosen.ports.get(name, 0)
        engine_id = chosen.engine_ids.get(name, NEW_AT_EVERY_START)
        argv = (sys.executable, "-I", "-S", SERVER, "--port", str(port), "--id", engine_id)
        kind = ("--how", self.how.get(name, "well"), "--revision", self.revision)
        return self._spec(role, index, port, (*argv, *kind, *self.more.get(name, ())), temp)

    def _spec(
        self, role: RoleName, index: int, port: int, argv: tuple[str, ...], temp: PurePosixPath
    ) -> ProcessSpec:
        command = Command(argv, cwd=str(temp))
        name = f"{role}-{index}.log"
        return ProcessSpec(role, index, "localhost", "127.0.0.1", port, None, command, name)

    def puts(self) -> list[dict[str, Any]]:
        """What the router was told, by name of the engine: `drained` and `generation`."""
        by_url = {record.url: record.name for record in self.state().processes.values()}
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        told = [json.loads(line)["engines"].items() for line in lines]
        return [{by_url[u]: (s["drained"], s["generation"]) for u, s in put} for put in told]

    def drained(self) -> list[set[str]]:
        """Who was drained, after each time the router was told."""
        return [{name for name, (why, _) in put.items() if why} for put in self.puts()]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    """A fleet that runs."""
    monkeypatch.setenv(paths.STATE_DIR_ENV, str(tmp_path / "st"))
    monkeypatch.setenv(paths.CACHE_DIR_ENV, str(tmp_path / "cache"))
    made = Fleet(config=Config.model_validate({**config().model_dump(), "engine": {}}))
    made.journal.parent.mkdir(parents=True)
    try:
        made.up()
        made.journal.unlink()
        yield made
    finally:
        made.end_everything()
        made.host.close()


def replaced(fleet: Fleet, before: dict[str, int]) -> set[str]:
    after = fleet.pids()
    return {name for name in before if after.get(name) != before[name]}


def test_one_at_a_time_drained_before_and_admitted_after(fleet: Fleet) -> None:
    before = fleet.pids()
    for name in ENGINES[2:]:
        fleet.more[name] = ("--max-num-seqs", "8")
    fleet.up()
    assert replaced(fleet, before) == {"decode-0", "decode-1"}
    assert fleet.drained() == [{"decode-0"}, set(), {"decode-1"}, set()]
    steps = [step for step in names(fleet.told(StepDone)) if "decode" in step]
    one = ["drain-{}", "stop-{}", "ports-{}", "{}", "health-{}", "pairs-{}", "admit-{}"]
    assert steps == [step.format(name) for name in ENGINES[2:] for step in one]
    assert len(fleet.running()) == 5


def test_an_upgrade_goes_by_cells_and_no_router_pairs_old_with_new(fleet: Fleet) -> None:
    before = fleet.pids()
    fleet.revision = "r2"
    fleet.up()
    assert replaced(fleet, before) == set(ENGINES)
    first, second = {"prefill-0", "decode-0"}, {"prefill-1", "decode-1"}
    assert fleet.drained() == [first, first, set(), second, second, set(), set()]
    moved = [{name for name, (_, kind) in put.items() if kind} for put in fleet.puts()]
    assert moved == [set(), first, first, first, set(ENGINES), set(ENGINES), set()]
    assert not fleet.state().generations


def test_requests_that_do_not_end_stop_it_and_nothing_was_ended(fleet: Fleet) -> None:
    before = fleet.pids()
    fleet.more["decode-0"] = ("--max-num-seqs", "8")
    (fleet.journal.parent / "busy").touch()
    target = {**fleet.config.target.model_dump(), "drain_timeout": "7m"}
    fleet.config = Config.model_validate({**fleet.config.model_dump(), "target": target})
    late = "did not end within 7m"
    with fast_clock(fleet.world) as world, pytest.raises(TemporaryError, match=late) as e:
        fleet.up(world=world)
    assert "`target.drain_timeout` is the limit" in e.value.hints[0]
    assert list(e.value.detail) == ["decode-0 has 1 request of router-0"]
    assert fleet.pids() == before
    assert fleet.state().drained == {"decode-0": BY_UP}

    (fleet.journal.parent / "busy").unlink()
    fleet.up()
    assert replaced(fleet, before) == {"decode-0"}
    assert fleet.state().drained == {}


def test_an_engine_that_is_not_proven_stays_out_and_the_others_are_left(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drains, "_PROOF_LIMIT_S", 0.3)
    before = fleet.pids()
    for name in ENGINES[2:]:
        fleet.more[name] = ("--max-num-seqs", "8")
    (fleet.journal.parent / "unproven").touch()
    with pytest.raises(TemporaryError, match="both ways") as e:
        fleet.up()
    assert list(e.value.detail) == ["decode-0 by router-0: no blocks came"]
    assert replaced(fleet, before) == {"decode-0"}
    assert [event.id for event in fleet.told(StepFailed)] == ["pairs-decode-0"]
    assert fleet.drained()[-1] == {"decode-0"}

    (fleet.journal.parent / "unproven").unlink()
    now = fleet.pids()["decode-0"]
    fleet.up()
    assert fleet.pids()["decode-0"] == now
    assert replaced(fleet, before) == {"decode-0", "decode-1"}
    assert fleet.drained()[-1] == set()


def test_a_new_engine_that_dies_stops_it_while_the_others_serve(fleet: Fleet) -> None:
    before = fleet.pids()
    fleet.revision = "r2"
    fleet.how["decode-0"] = "dies"
    with pytest.raises(Exception, match="ended while it was starting"):
        fleet.up()
    assert replaced(fleet, before) <= {"prefill-0", "decode-0"}
    assert fleet.drained()[-1] == {"prefill-0", "decode-0"}
    del fleet.how["decode-0"]
    fleet.up()
    assert replaced(fleet, before) == set(ENGINES)
    assert fleet.state().drained == {}
    assert fleet.drained()[-1] == set()


@pytest.mark.parametrize("at", range(2, 40, 4))
def test_an_upgrade_killed_between_two_steps_is_finished_by_up(fleet: Fleet, at: int) -> None:
    before = fleet.pids()
    fleet.revision = "r2"
    killed(lambda: fleet.up(world=replace(fleet.world, listen=killer(at))))
    half = fleet.pids()
    kept = {name for name in ENGINES if half.get(name) == before[name]}
    fleet.up()
    assert replaced(fleet, before) == set(ENGINES)
    # What the first run had replaced and proven is not replaced again.
    done = {name for name in half if name not in kept and name in ENGINES}
    assert {n for n in done if fleet.pids()[n] != half[n]} == set()
    assert sorted(fleet.running()) == sorted(fleet.pids().values())
    state = fleet.state()
    assert (state.drained, state.generations, state.phase) == ({}, {}, "running")
    assert fleet.drained()[-1] == set()


def test_another_operator_waits_while_an_engine_drains(fleet: Fleet) -> None:
    fleet.more["decode-0"] = ("--max-num-seqs", "8")
    (fleet.journal.parent / "busy").touch()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(fleet.up)
        wait_until(lambda: fleet.state().drained == {"decode-0": BY_UP})
        with pytest.raises(TemporaryError, match="another pdctl works on") as refused:
            fleet.up()
        assert "`pdctl up`" in refused.value.detail[0]
        (fleet.journal.parent / "busy").unlink()
        first.result(30)
    assert fleet.state().drained == {}
    assert len(fleet.running()) == 5


def test_a_dead_router_is_not_told_and_holds_up_nothing(fleet: Fleet) -> None:
    record = fleet.state().processes["router-0"]
    assert record.ref is not None
    fleet.host.stop(record.ref, timeout=1)
    fleet.more["decode-0"] = ("--max-num-seqs", "8")
    fleet.up()
    assert len(fleet.running()) == 5


def test_drained_by_hand_survives_up_and_a_restart_of_the_router(fleet: Fleet) -> None:
    told = drains.set_drained(
        fleet.world, fleet.store, fleet.state(), ["decode-1"], "by hand", None, wait=600.0
    )
    assert [(each.router, each.engine, each.drained) for each in told] == [
        ("router-0", "decode-1", "by hand")
    ]
    fleet.more["decode-1"] = ("--max-num-seqs", "8")
    fleet.up()
    assert fleet.state().drained == {"decode-1": "by hand"}
    record = fleet.state().processes["router-0"]
    assert record.ref is not None
    fleet.host.stop(record.ref, timeout=1)
    fleet.up()
    assert fleet.drained()[-1] == {"decode-1"}
    drains.set_drained(fleet.world, fleet.store, fleet.state(), ["decode-1"], "", None, wait=None)
    assert fleet.drained()[-1] == set()


def test_the_example_proxy_cannot_drain() -> None:
    router = {"kind": "vllm-example", "source": "/src.tar.gz"}
    example = Config.model_validate({**config().model_dump(), "router": router})
    with pytest.raises(UsageError):
        drains.require_switch(example, None)


def test_without_a_key_of_the_tenant_admin_the_line_to_add_is_told() -> None:
    router = {"port": 0, "api_keys_file": "/keys/clients"}
    keyed = Config.model_validate({**config().model_dump(), "router": router})
    drains.require_switch(keyed, "a-key")
    with pytest.raises(PermissionDeniedError) as refused:
        drains.require_switch(keyed, None)
    error = refused.value
    assert error.where == "/keys/clients, key `router.api_keys_file`"
    assert error.expected is not None
    assert "a line `admin:KEY`" in error.expected
    assert "then `pdctl up` takes it to the routers" in error.hints[0]


def test_up_says_before_it_starts_that_requests_are_cut_off_for_want_of_a_key(
    fleet: Fleet,
) -> None:
    """The router of these tests asks for none; what is told comes from the file's keys."""
    fleet.config = Config.model_validate(
        {**fleet.config.model_dump(), "router": {"port": 0, "api_keys_file": "/keys/clients"}}
    )
    fleet.more["decode-0"] = ("--max-num-seqs", "8")
    plan = fleet.survey().plan
    assert "drain-decode-0" not in [step.id for step in plan.steps]
    told = [line for line in plan.consent if line.startswith("requests that run on an engine")]
    assert len(told) == 1
    assert "/keys/clients has no line `admin:KEY`" in told[0]
