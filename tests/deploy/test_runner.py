import itertools
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.base import paths
from pdctl.base.errors import (
    BadAnswerError,
    PermissionDeniedError,
    TemporaryError,
    UnreachableError,
)
from pdctl.base.events import Note, StepDone, StepFailed, StepSkipped, StepWaiting
from pdctl.base.exits import ExitCode
from pdctl.base.process import ProcessSpec
from pdctl.deploy.probe import probe
from pdctl.deploy.runner import Proven
from pdctl.state.model import DeploymentState
from pdctl.targets.local import LocalHost
from tests.deploy.pair import NAME, NAMES, Pair, config, fast_clock, names


def kill(pair: Pair, name: str) -> None:
    ref = pair.state().processes[name].ref
    assert ref is not None
    os.kill(ref.pid, signal.SIGKILL)
    while pair.host.alive(ref):
        time.sleep(0.01)


# --- the usual way


def test_up_starts_everything_and_down_ends_it(pair: Pair) -> None:
    outcome = pair.up()
    assert outcome.changed
    assert pair.proofs == 1
    state = pair.state()
    assert state == outcome.state
    assert state.phase == "running"
    assert state.proof is not None
    assert (state.proof.reused_tokens, state.proof.processes) == (99, state.refs())
    for name in NAMES:
        record = state.processes[name]
        assert probe(f"{record.url}/health") is None
        assert record.healthy_at is not None
    assert names(pair.told(StepDone)) == [
        "directories",
        "files",
        "ports",
        "prefill-0",
        "decode-0",
        "health",
        "router-0",
        "router-health",
        "verify",
    ]

    removed = pair.down()
    assert [(each.name, each.gone) for each in removed.ended] == [
        ("router-0", False),
        ("prefill-0", False),
        ("decode-0", False),
    ]
    assert pair.running() == []
    assert pair.store.load() is None
    directory = paths.deployment_dir(NAME)
    assert sorted(os.listdir(directory)) == ["audit.log", "lock", "logs"]
    assert not paths.temp_dir(NAME).exists()
    assert "loading weights" in pair.log("prefill-0")


def test_every_change_leaves_a_line_in_the_audit_log(pair: Pair) -> None:
    pair.up()
    pair.down()
    lines = (paths.deployment_dir(NAME) / "audit.log").read_text().splitlines()
    assert all(f"pid={os.getpid()} user=" in line for line in lines)
    changes = [line.split(" ", 3)[3].split(" pid=")[0] for line in lines]
    assert changes[:6] == [
        "make 4 folders",
        "write 2 files",
        *(f"start {name}" for name in NAMES),
        "stop router-0",
    ]
    assert sorted(changes[6:8]) == ["stop decode-0", "stop prefill-0"]  # side by side
    assert changes[8:] == ["down: nothing is left"]


def test_what_runs_is_what_was_rendered_and_recorded(pair: Pair) -> None:
    pair.up()
    for name, record in pair.state().processes.items():
        assert record.ref is not None
        proc = Path(f"/proc/{record.ref.pid}")
        assert tuple(proc.joinpath("cmdline").read_text().split("\0")[:-1]) == record.argv
        environ = dict(
            item.split("=", 1) for item in proc.joinpath("environ").read_text().split("\0")[:-1]
        )
        assert environ == {**pair.host.inherited_env(), **record.env}
        assert environ["PDCTL_PROCESS"] == f"{paths.deployment_dir(NAME)}/{name}"


def test_a_second_up_has_nothing_to_do(pair: Pair) -> None:
    pair.up()
    before, file = pair.pids(), pair.store.path.stat().st_mtime_ns
    outcome = pair.up()
    assert not outcome.changed
    assert outcome.proven is None
    assert pair.pids() == before
    assert pair.store.path.stat().st_mtime_ns == file
    assert pair.told(StepDone) == []
    assert all(event.reason for event in pair.told(StepSkipped))


def test_up_without_proof_is_proven_by_the_next(pair: Pair) -> None:
    pair.up(verify=False)
    assert pair.state().proof is None
    pair.up()
    assert (pair.proofs, names(pair.told(StepDone))) == (1, ["verify"])


# --- what changes


def test_one_dead_process_is_restarted_alone_with_a_new_id(pair: Pair) -> None:
    pair.up()
    before = pair.state()
    kill(pair, "decode-0")
    pair.up()
    after = pair.state()
    assert names(pair.told(StepDone)) == ["ports", "decode-0", "health", "verify"]
    for name in ("prefill-0", "router-0"):
        assert after.processes[name] == before.processes[name]
    old, new = before.processes["decode-0"], after.processes["decode-0"]
    assert new.engine_id != old.engine_id
    assert new.port == old.port
    assert new.engine_id is not None
    assert new.engine_id.startswith("demo-decode-0-")


def test_a_changed_configuration_restarts_what_it_touches(pair: Pair) -> None:
    pair.up()
    before = pair.pids()
    pair.more["prefill-0"] = ("--seqs", "16")
    pair.up()
    after = pair.pids()
    assert {name for name in NAMES if before[name] != after[name]} == {"prefill-0"}
    assert len(pair.running()) == 3


def test_children_of_a_dead_process_end_before_its_restart(pair: Pair) -> None:
    pair.how["prefill-0"] = "family"
    pair.up()
    assert len(pair.running()) == 4
    kill(pair, "prefill-0")
    assert len(pair.running()) == 3
    pair.up()
    assert names(pair.told(StepDone))[0] == "leftovers"
    assert len(pair.running()) == 4


# --- ports


def test_a_taken_port_is_named_before_anything_starts(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        pair.ports["decode-0"] = port
        with pytest.raises(TemporaryError) as caught:
            pair.up()
    error = caught.value
    assert error.exit_code == ExitCode.TRY_AGAIN
    assert error.message == "a port that is needed is taken; nothing was started"
    assert error.detail[0].startswith(f"port {port} is held by pid {os.getpid()} (")
    assert error.detail[0].endswith("), which decode-0 needs")
    assert pair.running() == []
    assert pair.store.load() is None


def test_a_process_that_cannot_move_to_a_taken_port_is_not_ended(pair: Pair) -> None:
    pair.up()
    before = pair.pids()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pair.ports["decode-0"] = listener.getsockname()[1]
        with pytest.raises(TemporaryError, match="nothing was started"):
            pair.up()
    assert pair.pids() == before
    assert len(pair.running()) == 3


def test_two_processes_may_swap_their_ports(pair: Pair) -> None:
    pair.up()
    ports = {name: record.port for name, record in pair.state().processes.items()}
    pair.ports = {"prefill-0": ports["decode-0"], "decode-0": ports["prefill-0"]}
    pair.up()
    assert pair.state().processes["prefill-0"].port == ports["decode-0"]
    assert len(pair.running()) == 3


def test_a_chosen_port_that_a_stranger_took_meanwhile_is_chosen_again(pair: Pair) -> None:
    pair.up()
    port = pair.state().processes["decode-0"].port
    kill(pair, "decode-0")
    with socket.create_server(("127.0.0.1", port)):
        pair.up()
        assert pair.state().processes["decode-0"].port != port


# --- failures while starting


def test_a_process_that_dies_shows_its_last_lines_and_leaves_the_other(pair: Pair) -> None:
    pair.how["decode-0"] = "dies"
    with pytest.raises(UnreachableError) as caught:
        pair.up()
    error = caught.value
    assert error.exit_code == ExitCode.UNREACHABLE
    assert error.message.startswith("decode-0 (pid ")
    assert error.message.endswith("ended while it was starting")
    assert error.detail[0] == "its last lines:"
    assert error.detail[-2:] == ("line 29", "RuntimeError: no weights there")
    assert len(error.detail) == 21
    assert error.where == f"localhost: {paths.log_dir(NAME) / 'decode-0.log'}"
    assert names(pair.told(StepFailed)) == ["health"]
    (note,) = pair.told(Note)
    pid = pair.pids()["prefill-0"]
    assert f"still running: prefill-0 (pid {pid})" in note.text
    assert "`pdctl up -f pd.yaml` goes on from here" in note.text
    assert "`pdctl down --name demo` ends it" in note.text

    pair.how["decode-0"] = "well"
    pair.up()
    assert pair.pids()["prefill-0"] == pid
    assert "prefill-0" in names(pair.told(StepSkipped))


def test_only_lines_of_this_start_are_shown(pair: Pair) -> None:
    pair.up()
    kill(pair, "decode-0")
    pair.how["decode-0"] = "dies"
    with pytest.raises(UnreachableError) as caught:
        pair.up()
    port = pair.state().processes["decode-0"].port
    assert pair.log("decode-0").count(f"loading weights for port {port}") == 2
    assert "\n".join(caught.value.detail).count("loading weights") == 0


def test_waiting_says_what_for_and_ends_at_the_limit(pair: Pair) -> None:
    pair.how["prefill-0"] = "late"
    with fast_clock(pair.world) as world, pytest.raises(TemporaryError) as caught:
        pair.up(world=world)
    error = caught.value
    assert error.exit_code == ExitCode.TRY_AGAIN
    assert "did not answer within 30 s" in error.message
    waits = pair.told(StepWaiting)
    assert len(waits) >= 2
    assert all(b.elapsed_s - a.elapsed_s <= 30 for a, b in itertools.pairwise(waits))
    assert "prefill-0" in waits[-1].waiting_for
    assert "to answer /health" in waits[-1].waiting_for
    assert len(pair.running()) == 2  # left running, to be looked at
    assert pair.state().phase == "starting"


def test_a_failed_proof_leaves_everything_running(pair: Pair) -> None:
    def fail(state: DeploymentState) -> Proven:
        raise BadAnswerError("not proven")

    pair.prove = fail  # type: ignore[method-assign]
    with pytest.raises(BadAnswerError, match="not proven"):
        pair.up()
    assert len(pair.running()) == 3
    assert pair.state().proof is None


# --- interruptions


class StopsAt(LocalHost):
    """Is interrupted right after, or before, it started a process."""

    def __init__(self, name: str, *, after: bool) -> None:
        super().__init__()
        self._at, self._after = name, after

    def start(self, spec: ProcessSpec, log: object) -> object:  # type: ignore[override]
        if spec.name == self._at and not self._after:
            os.kill(os.getpid(), signal.SIGINT)
        ref = super().start(spec, log)  # type: ignore[arg-type]
        if spec.name == self._at and self._after:
            os.kill(os.getpid(), signal.SIGINT)
        return ref


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_an_interrupt_never_loses_a_process(pair: Pair, name: str, *, after: bool) -> None:
    pair.host = StopsAt(name, after=after)
    with pytest.raises(KeyboardInterrupt):
        pair.up()
    # Starting and recording is one act: the interrupt waited for its end.
    assert sorted(pair.pids().values()) == sorted(pair.running())
    assert name in pair.pids()
    (note,) = pair.told(Note)
    assert note.text.startswith("interrupted; still running: prefill-0 (pid ")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    before, pair.host = pair.pids(), LocalHost()
    pair.up()
    after_up = pair.pids()
    assert {key: after_up[key] for key in before} == before
    assert len(pair.running()) == 3


def test_an_interrupt_while_waiting_says_what_goes_on(pair: Pair) -> None:
    pair.how["prefill-0"] = "late"
    world = replace(pair.world, sleep=lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(KeyboardInterrupt):
        pair.up(world=world)
    assert len(pair.running()) == 2
    assert pair.state().phase == "starting"
    removed = pair.down()
    assert len(removed.ended) == 2
    assert pair.running() == []


def test_a_process_that_was_started_and_never_recorded_is_found(pair: Pair) -> None:
    """As after kill -9 between the start and the save."""
    pair.how["prefill-0"] = "family"
    pair.up()
    state = pair.state()
    pids = pair.running()
    pair.store.save(
        state.with_process(replace(state.processes["prefill-0"], ref=None, healthy_at=None))
    )
    pair.up()
    assert names(pair.told(StepDone))[0] == "leftovers"
    running = pair.running()
    assert len(running) == 4
    assert len(set(running) & set(pids)) == 2  # decode and router were left alone


# --- leaving things alone


def test_a_folder_of_somebody_else_is_refused(pair: Pair, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    paths.deployment_dir(NAME).mkdir(parents=True)
    paths.temp_dir(NAME).symlink_to(elsewhere)
    with pytest.raises(PermissionDeniedError, match="is not a private folder of this user"):
        pair.up()
    assert pair.running() == []


def test_an_open_folder_of_our_own_is_closed(pair: Pair) -> None:
    paths.temp_dir(NAME).mkdir(parents=True)
    paths.temp_dir(NAME).chmod(0o777)
    pair.up()
    assert paths.temp_dir(NAME).stat().st_mode & 0o777 == 0o700


def test_a_deep_state_folder_gets_a_short_place_for_sockets(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(paths.STATE_DIR_ENV, str(tmp_path / ("deep-" * 12)))
    temp = paths.temp_dir(NAME)
    assert len(os.fsencode(temp)) <= 64
    assert temp.parent == Path("/tmp")
    pair.up()
    assert temp.is_dir()
    pair.down()
    assert not temp.exists()


def test_limits_come_from_the_file(pair: Pair) -> None:
    pair.config = config(start_timeout=7, stop_timeout=3)
    pair.how["prefill-0"] = "late"
    with fast_clock(pair.world) as world, pytest.raises(TemporaryError, match="within 7 s"):
        pair.up(world=world)
    assert pair.state().stop_timeout == 3
