"""A turn that D is asked to keep for longer, on stand-ins for the scheduler and its workers."""

import importlib
import random
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.plugin import lease_renewal
from pdctl.plugin._guard import Guard, Outcome
from tests.plugin import engine_shapes
from tests.plugin.conftest import InstallEngine

MODULE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector"
ON = {"PDCTL_LEASE_RENEWAL": "on"}
TTL = 10.0


def _apply(env: dict[str, str]) -> Outcome:
    guard = Guard(report=lambda outcomes: None)
    guard.apply("x", lease_renewal.lever, env)
    importlib.import_module(MODULE)
    return guard.outcomes["x"]


@dataclass
class Request:
    request_id: str
    kv_transfer_params: dict[str, Any] | None
    status: str = "finished"


@dataclass
class Output:
    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


class Decode:
    """A scheduler with its workers, and steps that may be scheduled before others are processed."""

    def __init__(self, clock: Clock, workers: int = 2) -> None:
        module = importlib.import_module(MODULE)
        self.clock = clock
        self.scheduler = module.NixlPullConnectorScheduler("e1", TTL)
        self.workers = [module.NixlPullConnectorWorker() for _ in range(workers)]
        self.missing: dict[str, int] = {}
        self.freed: set[str] = set()
        self.meta: list[tuple[Any, list[Request]]] = []
        self.outputs: list[tuple[Output, list[Request]]] = []

    def schedule(self, *requests: Request) -> None:
        for request in requests:
            self.scheduler.update_state_after_alloc(request, None, 0)
        self.meta.append((self.scheduler.build_connector_meta(None), list(requests)))

    def execute(self, late: float = 0.0) -> None:
        meta, requests = self.meta.pop(0)
        output = Output()
        for place, worker in enumerate(self.workers):
            self.clock.now += late * place
            worker.start_load_kv(meta)
            done: set[str] = set()
            worker._reap_expired_send_leases(done)
            self._count(done, output)
        self.outputs.append((output, requests))

    def process(self) -> list[tuple[bool, Any]]:
        output, requests = self.outputs.pop(0)
        # As the real one does: who has finished, and then what the workers have let go.
        answers = [self.scheduler.request_finished(each, ([1],)) for each in requests]
        self.scheduler.update_connector_output(output)
        self.freed |= output.finished_sending
        return answers

    def step(self, *requests: Request, late: float = 0.0) -> list[tuple[bool, Any]]:
        self.schedule(*requests)
        self.execute(late)
        return self.process()

    def turn(self, name: str) -> dict[str, Any]:
        """A turn that has pulled its prompt from prefill; what its answer says."""
        ((keeps, params),) = self.step(Request(name, {"do_remote_prefill": True}))
        self.step()
        assert keeps
        assert isinstance(params, dict)
        return params

    def renew(self, until: dict[str, float], **more: Any) -> Any:
        ((keeps, params),) = self.step(_asking(until, **more))
        assert not keeps, "what asks must not be kept itself"
        return params["pdctl_renewed"]

    def read(self, name: str) -> None:
        """Prefill has read it from all workers."""
        output = Output()
        for worker in self.workers:
            done: set[str] = set()
            worker.read_by_prefill(name, done)
            self._count(done, output)
        self.scheduler.update_connector_output(output)
        self.freed |= output.finished_sending

    def _count(self, done: set[str], output: Output) -> None:
        for name in done:
            self.missing[name] = self.missing.get(name, len(self.workers)) - 1
            if not self.missing[name]:
                output.finished_sending.add(name)


_numbers = iter(range(10**9))


def _asking(until: Any, engine_id: str = "e1") -> Request:
    asked = {"engine_id": engine_id, "until": until}
    return Request(f"r{next(_numbers)}", {"do_remote_decode": True, "pdctl_renew": asked})


@pytest.fixture
def clock(install_engine: InstallEngine, monkeypatch: pytest.MonkeyPatch) -> Clock:
    install_engine(engine_shapes.VLLM_LEASES)
    assert _apply(ON) == Outcome(
        "applied", "turns that NixlPullConnectorScheduler keeps can be renewed"
    )
    return Clock(monkeypatch)


def test_off_unless_asked_for(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_LEASES)
    assert _apply({}).state == "off"
    scheduler = importlib.import_module(MODULE).NixlPullConnectorScheduler
    assert not hasattr(scheduler.request_finished, "__wrapped__")


def test_applied_once(install_engine: InstallEngine) -> None:
    install_engine(engine_shapes.VLLM_LEASES)
    _apply(ON)
    owner = importlib.import_module(MODULE).NixlPullConnectorScheduler
    before = owner.request_finished
    assert _apply(ON).state == "applied"
    assert owner.request_finished is before


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("self._reqs_need_send = {}", "self._to_send = {}", ""),
        (
            "meta.reqs_to_send = self._reqs_need_send",
            "meta.sends = self._reqs_need_send",
            "NixlPullConnectorScheduler.build_connector_meta does not use reqs_to_send",
        ),
        (
            "def request_finished(self, request, block_ids)",
            "def request_finished(self, request, block_ids, more=None)",
            "NixlPullConnectorScheduler.request_finished takes other arguments",
        ),
        (
            "in metadata.reqs_to_send.items()",
            "in metadata.sends.items()",
            "NixlPullConnectorWorker.start_load_kv does not use reqs_to_send",
        ),
        (
            "def _reap_expired_send_leases",
            "def _reap",
            "NixlPullConnectorWorker has no _reap_expired_send_leases",
        ),
    ],
)
def test_what_it_does_not_know_it_leaves_alone(
    install_engine: InstallEngine, old: str, new: str, why: str
) -> None:
    ((path, source),) = engine_shapes.VLLM_LEASES.items()
    assert old in source
    install_engine({path: source.replace(old, new)})
    outcome = _apply(ON)
    if why:
        assert outcome == Outcome("not-applicable", why)
        owner = importlib.import_module(MODULE).NixlPullConnectorScheduler
        assert not hasattr(owner.request_finished, "__wrapped__")


def test_a_turn_is_kept_until_the_answer_says(clock: Clock) -> None:
    decode = Decode(clock)
    handle = decode.turn("a")
    assert handle["pdctl_renewable"] is True
    first = handle["remote_blocks_expiry_time"]
    clock.now += 6
    assert decode.renew({"a": first + 5}) == {"a": first + 5}
    clock.now = first + 4.9
    decode.step()
    assert decode.freed == set()
    clock.now = first + 5.1
    decode.step()
    assert decode.freed == {"a"}


def test_without_renewal_it_ends_as_ever(clock: Clock) -> None:
    decode = Decode(clock)
    clock.now = decode.turn("a")["remote_blocks_expiry_time"]
    decode.step()
    assert decode.freed == {"a"}


def test_no_deadline_is_made_earlier_or_later_than_a_ttl_from_now(clock: Clock) -> None:
    decode = Decode(clock)
    first = decode.turn("a")["remote_blocks_expiry_time"]
    assert decode.renew({"a": first - 5}) == {"a": first}
    clock.now += 5
    assert decode.renew({"a": first + 1e9}) == {"a": clock.now + TTL}
    decode.scheduler.decoder_kv_blocks_ttl = 1.0
    assert decode.renew({"a": first + 1e9}) == {"a": clock.now + TTL}


def test_asking_twice_gives_the_same_answer(clock: Clock) -> None:
    decode = Decode(clock)
    until = {"a": decode.turn("a")["remote_blocks_expiry_time"] + 3}
    clock.now += 5
    assert decode.renew(until) == decode.renew(until) == until


def test_nothing_is_left_of_who_asks(clock: Clock) -> None:
    decode = Decode(clock)
    decode.turn("a")
    decode.renew({"a": clock.now + 5})
    decode.step()
    assert all(worker._reqs_to_process == {"a"} for worker in decode.workers)
    leases = lease_renewal.Leases.of(decode.scheduler)
    assert (set(leases.kept), leases.granted) == ({"a"}, {})
    decode.read("a")
    assert leases.kept == {}


def test_what_was_read_is_not_renewed(clock: Clock) -> None:
    decode = Decode(clock)
    until = decode.turn("a")["remote_blocks_expiry_time"] + 3
    decode.read("a")
    assert decode.renew({"a": until}) == {}
    assert all(worker._reqs_to_send == {} for worker in decode.workers)


def test_what_has_expired_is_not_renewed(clock: Clock) -> None:
    decode = Decode(clock)
    until = decode.turn("a")["remote_blocks_expiry_time"] + 3
    clock.now = until
    assert decode.renew({"a": until + 3}) == {}
    assert decode.freed == {"a"}


def test_a_renewal_that_overtakes_the_end_is_not_confirmed(clock: Clock) -> None:
    """The scheduler is a step ahead of the workers, which let go in the step before."""
    decode = Decode(clock)
    first = decode.turn("a")["remote_blocks_expiry_time"]
    decode.schedule()
    clock.now = first - 0.1
    decode.schedule(_asking({"a": first + 5}))
    clock.now = first + 0.1  # they are slow
    decode.execute()
    decode.execute()
    decode.process()
    assert decode.freed == {"a"}
    ((_, params),) = decode.process()
    assert params == {"pdctl_renewed": {}}


def test_workers_that_part_keep_the_blocks_until_the_last_lets_go(clock: Clock) -> None:
    """One worker let go before it heard of the renewal: the scheduler waits for the other."""
    decode = Decode(clock)
    first = decode.turn("a")["remote_blocks_expiry_time"]
    slow = decode.workers[1]
    slow._reqs_to_send["a"] = first + 0.5  # it heard of the turn a little later
    clock.now = first + 0.1
    decode.step()  # the first lets go
    assert decode.freed == set()
    assert decode.renew({"a": first + 5}) == {}, "by the scheduler's own clock it was too late"
    clock.now = first + 1
    decode.step()
    assert decode.freed == {"a"}


@pytest.mark.parametrize(
    "asked",
    [
        {},
        [],
        "a",
        0,
        True,
        {"engine_id": "e1"},
        {"engine_id": "e1", "until": ["a"]},
        {"engine_id": "e1", "until": {"a": None}},
        {"engine_id": "e1", "until": {"a": "5"}},
        {"engine_id": "e1", "until": {"a": True}},
        {"engine_id": "e1", "until": {"a": float("nan")}},
        {"engine_id": "e1", "until": {"a": float("inf")}},
        {"engine_id": "e2", "until": {"a": 2000.0}},
        {"until": {"a": 2000.0}},
    ],
)
def test_nonsense_renews_nothing_and_is_answered(clock: Clock, asked: Any) -> None:
    decode = Decode(clock)
    decode.turn("a")
    before = [dict(worker._reqs_to_send) for worker in decode.workers]
    ((keeps, params),) = decode.step(Request("r", {"pdctl_renew": asked}))
    assert (keeps, params) == (False, {"pdctl_renewed": {}})
    assert [worker._reqs_to_send for worker in decode.workers] == before


def test_one_that_is_given_up_before_it_ran_changes_nothing(clock: Clock) -> None:
    decode = Decode(clock)
    first = decode.turn("a")["remote_blocks_expiry_time"]
    given_up = _asking({"a": first + 5})
    given_up.status = "aborted"
    assert decode.scheduler.request_finished(given_up, ()) == (False, {"pdctl_renewed": {}})
    clock.now = first
    decode.step()
    assert decode.freed == {"a"}


def test_a_fault_of_its_own_never_reaches_the_engine(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    decode = Decode(clock)
    decode.turn("a")

    def fail(*args: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(lease_renewal, "_wanted", fail)
    assert decode.renew({"a": 2000.0}) == {}
    assert "nothing renewed: boom" in caplog.text


def test_prefills_own_leases_are_not_touched(clock: Clock) -> None:
    decode = Decode(clock)
    ((keeps, params),) = decode.step(Request("p", {"do_remote_decode": True}))
    assert keeps
    assert "pdctl_renewable" not in params
    decode.step()
    assert decode.renew({"p": clock.now + 5}) == {}


class Chaos:
    """Steps, renewals and reads in any order, with any delays."""

    def __init__(self, decode: Decode, chance: random.Random, *, ahead: bool) -> None:
        self.decode, self.chance, self.ahead = decode, chance, ahead
        self.said = {name: decode.turn(name)["remote_blocks_expiry_time"] for name in "abc"}
        self.read: set[str] = set()

    def go_on(self) -> None:
        clock, chance = self.decode.clock, self.chance
        clock.now += chance.choice([0.0, 0.1, 1.0, 3.0])
        asking = []
        if chance.random() < 0.5:
            names = chance.sample("abc", chance.randint(1, 3))
            asking = [_asking({name: clock.now + chance.uniform(-5, 20) for name in names})]
        self.decode.schedule(*asking)
        if self.ahead and len(self.decode.meta) < 2 and chance.random() < 0.5:
            return  # the next step is scheduled before this one has run
        while self.decode.meta:
            self.decode.execute(late=chance.choice([0.0, 0.0, 0.5]))
            if chance.random() < 0.05:
                self.read_one()
        while self.decode.outputs:
            self.process()

    def read_one(self) -> None:
        name = self.chance.choice("abc")
        if all(name in worker._reqs_to_process for worker in self.decode.workers):
            self.decode.read(name)
            self.read.add(name)

    def process(self) -> None:
        before = set(self.decode.freed)
        for _, params in self.decode.process():
            for name, deadline in params["pdctl_renewed"].items():
                assert name not in before
                self.said[name] = max(self.said[name], deadline)
        for name in self.decode.freed - before - self.read:
            assert self.decode.clock.now >= self.said[name], "freed before its time"


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 3), ahead=st.booleans())
def test_what_is_confirmed_is_never_freed_before_it(
    clock: Clock, seed: int, workers: int, ahead: bool
) -> None:
    chaos = Chaos(Decode(clock, workers), random.Random(seed), ahead=ahead)
    for _ in range(40):
        chaos.go_on()
