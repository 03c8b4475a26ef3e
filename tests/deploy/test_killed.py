"""`up` and `down` killed with SIGKILL at every event, and between starting and recording."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath

import pytest

from pdctl.base.events import Event
from pdctl.base.process import ProcessRef, ProcessSpec
from pdctl.targets.local import LocalHost
from tests.deploy.pair import NAMES, Pair

EVENTS_OF_UP = 19  # asserted below: one started and one done for each step, and one skipped
KILLS = tuple(range(1, EVENTS_OF_UP + 1))


def killed(work: Callable[[], object]) -> None:
    """Run `work` in a process of its own, which kills itself in the middle."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)  # it was to be killed before it came here
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status), "it ended before it was killed"


def killer(at: int) -> Callable[[Event], None]:
    left = [at]

    def listen(event: Event) -> None:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return listen


def test_the_number_of_events_is_what_these_tests_assume(pair: Pair) -> None:
    pair.up()
    assert len(pair.events) == EVENTS_OF_UP + 1  # `engine` is skipped here


@pytest.mark.parametrize("at", KILLS)
def test_up_killed_at_any_event_is_finished_by_up(pair: Pair, at: int) -> None:
    killed(lambda: pair.up(world=replace(pair.world, listen=killer(at))))
    pair.up()
    assert sorted(pair.pids()) == sorted(NAMES)
    assert sorted(pair.running()) == sorted(pair.pids().values())
    assert pair.state().phase == "running"


@pytest.mark.parametrize("at", KILLS[::3])
def test_up_killed_at_any_event_is_undone_by_down(pair: Pair, at: int) -> None:
    killed(lambda: pair.up(world=replace(pair.world, listen=killer(at))))
    pair.down()
    assert pair.running() == []
    assert pair.store.load() is None


class KilledAfterStart(LocalHost):
    """The worst moment: the process runs, and nothing was written about it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._at = name

    def start(self, spec: ProcessSpec, log: PurePosixPath) -> ProcessRef:
        ref = super().start(spec, log)
        if spec.name == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
        return ref


@pytest.mark.parametrize("then", ["up", "down"])
@pytest.mark.parametrize("name", NAMES)
def test_a_process_that_was_started_but_not_recorded_is_not_lost(
    pair: Pair, name: str, then: str
) -> None:
    pair.how[name] = "family"
    pair.host = KilledAfterStart(name)
    killed(pair.up)
    pair.host = LocalHost()
    assert name not in pair.pids()
    stray = set(pair.running()) - set(pair.pids().values())
    assert stray
    if then == "up":
        pair.up()
        assert not stray & set(pair.running())
        assert sorted(pair.pids()) == sorted(NAMES)
    else:
        pair.down()
        assert pair.running() == []


@pytest.mark.parametrize("at", range(1, 7))
def test_down_killed_at_any_event_is_finished_by_down(pair: Pair, at: int) -> None:
    pair.up()

    def die() -> None:
        pair.events = Killing(at)  # type: ignore[assignment]
        pair.down()

    killed(die)
    pair.down()
    assert pair.running() == []
    assert pair.store.load() is None


class Killing(list[Event]):
    """Events that kill when there are enough of them."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def append(self, event: Event) -> None:
        super().append(event)
        if len(self) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)
