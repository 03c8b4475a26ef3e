import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace

import pytest

from pdctl.base import paths
from pdctl.base.errors import BadAnswerError
from pdctl.base.events import Note
from pdctl.base.process import ProcessRef
from pdctl.deploy.teardown import tear_down
from pdctl.targets.local import LocalHost
from tests.deploy.pair import NAME, Pair


def test_down_ends_deaf_processes_and_children_that_left(pair: Pair) -> None:
    pair.how |= {"prefill-0": "deaf", "decode-0": "family"}
    pair.up()
    pair.down()
    assert pair.running() == []


def test_down_twice_and_down_of_nothing(pair: Pair) -> None:
    pair.up()
    pair.down()
    removed = tear_down(pair.world, pair.store, None, place=pair.place)
    assert (removed.ended, removed.leftovers, removed.folders) == ((), (), ())


def test_a_recycled_pid_is_never_killed(pair: Pair) -> None:
    """The recorded process is gone, and another has its pid by now."""
    pair.up()
    state = pair.state()
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        record = state.processes["router-0"]
        assert record.ref is not None
        pair.host.stop(record.ref, timeout=5)
        reused = replace(record.ref, pid=stranger.pid)
        pair.store.save(state.with_process(replace(record, ref=reused)))
        removed = pair.down()
        assert stranger.poll() is None
        assert (removed.ended[0].name, removed.ended[0].gone) == ("router-0", True)
    finally:
        stranger.kill()
        stranger.wait()


def test_after_a_reboot_nothing_recorded_is_touched(pair: Pair) -> None:
    pair.up()
    state = pair.state()
    pair.end_everything()
    mine = ProcessRef(os.getpid(), 1, "another boot")
    for record in list(state.processes.values()):
        state = state.with_process(replace(record, ref=mine))
    pair.store.save(state)
    removed = pair.down()
    assert all(each.gone for each in removed.ended)
    assert pair.store.load() is None


def test_down_finds_what_was_never_recorded(pair: Pair) -> None:
    pair.up()
    pids = pair.running()
    pair.store.remove()
    removed = tear_down(pair.world, pair.store, None, place=pair.place)
    assert sorted(removed.leftovers) == sorted(pids)
    assert pair.running() == []


def test_user_files_and_logs_survive(pair: Pair) -> None:
    pair.up()
    mine = paths.deployment_dir(NAME) / "requests.jsonl"
    mine.write_text("{}\n")
    pair.down()
    assert mine.read_text() == "{}\n"
    assert (paths.log_dir(NAME) / "router-0.log").exists()


def test_a_state_that_names_foreign_folders_removes_none(pair: Pair, tmp_path: object) -> None:
    pair.up()
    foreign = paths.state_root() / "precious"
    foreign.mkdir()
    state = pair.state()
    inside = f"{paths.deployment_dir(NAME)}/../precious"
    doctored = replace(state, directories=(*state.directories, str(foreign), inside, "/", "/tmp"))
    pair.store.save(doctored)
    pair.down()
    assert foreign.is_dir()


class Immortal(LocalHost):
    """Cannot end anything, as with a process that hangs in the kernel."""

    def stop(self, ref: ProcessRef, *, timeout: float) -> bool:
        return False


def test_what_will_not_end_is_said_and_the_state_is_kept(pair: Pair) -> None:
    pair.up()
    real, pair.host = pair.host, Immortal()
    with pytest.raises(BadAnswerError, match="still runs") as caught:
        pair.down()
    assert caught.value.detail[0].startswith("router-0: pid ")
    assert pair.state().phase == "stopping"
    pair.host = real
    pair.down()
    assert pair.running() == []


def test_an_interrupted_down_is_finished_by_the_next(pair: Pair) -> None:
    pair.up()

    class Interrupted(LocalHost):
        def stop(self, ref: ProcessRef, *, timeout: float) -> bool:
            raise KeyboardInterrupt

    real, pair.host = pair.host, Interrupted()
    with pytest.raises(KeyboardInterrupt):
        pair.down()
    pair.host = real
    assert len(pair.pids()) == 3
    pair.down()
    assert pair.running() == []


def test_a_port_that_a_stranger_took_is_told(pair: Pair) -> None:
    pair.up()
    record = pair.state().processes["router-0"]
    assert record.ref is not None
    os.kill(record.ref.pid, signal.SIGKILL)
    pair.host.stop(record.ref, timeout=5)
    pair.events.clear()
    with socket.create_server(("127.0.0.1", record.port)):
        pair.down()
    (note,) = pair.told(Note)
    assert note.text.startswith(f"port {record.port} of router-0 is in use by pid {os.getpid()}")
