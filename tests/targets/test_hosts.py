"""What every way of reaching a machine must do, in the same way: this one, locally and over SSH."""

import hashlib
import json
import os
import signal
import socket
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base.command import Command, command
from pdctl.base.errors import NotFoundError, PdctlError, TemporaryError, UsageError
from pdctl.base.process import MARK_ENV, ProcessRef
from pdctl.targets import procfs
from pdctl.targets.base import Host
from pdctl.targets.local import LocalHost
from tests.targets.conftest import Start
from tests.targets.programs import DEAF, ENDING, FAMILY, SLEEP, spec_of, wait_for_text, wait_until


def python(code: str) -> Command:
    return command(sys.executable, "-c", code)


# --- run


def test_run_gives_both_outputs_and_the_status_apart(host: Host) -> None:
    result = host.run(
        python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"), timeout=20
    )
    assert (result.exit_status, result.stdout, result.stderr, result.ok) == (
        3,
        "out\n",
        "err\n",
        False,
    )


def test_run_tells_lines_while_they_come_and_bytes_that_are_not_text(host: Host) -> None:
    lines: list[str] = []
    code = (
        "import sys; sys.stdout.buffer.write(b'10%\\r20%\\rdone \\xff\\nrest'); sys.stdout.flush()"
    )
    result = host.run(python(code), timeout=20, on_line=lines.append)
    assert lines == ["10%", "20%", "done \ufffd", "rest"]
    assert result.stdout == "10%\r20%\rdone \ufffd\nrest"


def test_run_passes_input_larger_than_a_pipe(host: Host) -> None:
    content = os.urandom(400_000)
    code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    result = host.run(python(code), timeout=20, stdin=content)
    assert result.stdout.strip() == hashlib.sha256(content).hexdigest()


def test_run_bears_a_command_that_does_not_want_its_input(host: Host) -> None:
    result = host.run(python("print('no')"), timeout=20, stdin=b"x" * 1_000_000)
    assert result.stdout == "no\n"


def test_run_at_the_limit_ends_the_whole_group(host: Host, tmp_path: Path) -> None:
    mark = f"{tmp_path}/run"
    family = command(sys.executable, "-c", FAMILY, env={MARK_ENV: mark})
    lines: list[str] = []
    with pytest.raises(TemporaryError) as caught:
        host.run(family, timeout=0.6, on_line=lines.append)
    assert "did not end within 0.6 s" in caught.value.message
    assert caught.value.detail == tuple(lines)
    assert host.find(mark) == []


def test_run_ends_with_its_command_though_a_child_keeps_the_pipe(host: Host) -> None:
    code = "import os, time; os.fork() or time.sleep(60); print('parent')"
    began = time.monotonic()
    result = host.run(python(code), timeout=20)
    assert time.monotonic() - began < 30
    assert "parent" in result.stdout


def test_run_interrupted_leaves_nothing(host: Host, tmp_path: Path) -> None:
    mark = f"{tmp_path}/run"

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        host.run(
            command(sys.executable, "-c", FAMILY, env={MARK_ENV: mark}),
            timeout=20,
            on_line=interrupt,
        )
    assert host.find(mark) == []


def test_run_names_a_missing_program_and_a_missing_directory(host: Host, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no program `/no/such/program`"):
        host.run(command("/no/such/program"), timeout=1)
    with pytest.raises(NotFoundError, match=f"no working directory `{tmp_path}/gone`"):
        host.run(command(sys.executable, cwd=f"{tmp_path}/gone"), timeout=1)


# --- files


def test_write_file_makes_folders_and_sets_the_mode(host: Host, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path / "a" / "b" / "file")
    for content, mode in ((b"one", 0o600), (b"\0\xff\r\n", 0o755), (b"", 0o644)):
        host.write_file(path, content, mode=mode)
        assert Path(path).read_bytes() == content
        assert stat.S_IMODE(os.stat(path).st_mode) == mode
    assert os.listdir(tmp_path / "a" / "b") == ["file"]


def test_write_file_where_a_file_is_in_the_way_changes_nothing(host: Host, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("one")
    with pytest.raises(PdctlError, match=r"Not a directory|File exists"):
        host.write_file(PurePosixPath(tmp_path / "file" / "inside"), b"two" * 1_000_000)
    (tmp_path / "folder").mkdir()
    with pytest.raises(PdctlError, match="Is a directory"):
        host.write_file(PurePosixPath(tmp_path / "folder"), b"two")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


ODD = [
    "with space",
    'it\'s "quoted"',
    "new\nline",
    "ünïcödé-雪",
    "-rf",
    "$HOME `id` $(id) ; & | * ? ~ \\",
    "bytes-\udcff",
    "x" * 255,
]


@pytest.mark.parametrize("name", ODD)
def test_names_are_only_names(host: Host, tmp_path: Path, name: str) -> None:
    path = PurePosixPath(tmp_path / "odd" / name)
    host.write_file(path, b"content")
    assert os.listdir(tmp_path / "odd") == [name]
    assert host.exists(path)
    assert host.read_file(path) == b"content"
    result = host.run(command("cat", "--", name, cwd=str(tmp_path / "odd")), timeout=20)
    assert result.stdout == "content", result.stderr
    host.remove_tree(path)
    assert not host.exists(path)


@pytest.mark.parametrize("name", ODD)
def test_arguments_and_variables_arrive_as_they_are(host: Host, name: str) -> None:
    code = "import json, os, sys; print(json.dumps([sys.argv[1], os.environ['ODD']]))"
    result = host.run(command(sys.executable, "-c", code, name, env={"ODD": name}), timeout=20)
    assert json.loads(result.stdout) == [name, name]


def test_a_large_file_goes_both_ways_whole(host: Host, tmp_path: Path) -> None:
    content = os.urandom(1_000_003) * 20
    path = PurePosixPath(tmp_path / "large")
    host.write_file(path, content, mode=0o600)
    assert Path(path).read_bytes() == content
    assert host.read_file(path) == content
    assert host.read_file(path, limit=1_000_003) == content[-1_000_003:]


def test_read_file_gives_the_end_and_none_for_nothing(host: Host, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path / "log")
    Path(path).write_bytes(b"0123456789")
    assert host.read_file(path) == b"0123456789"
    assert host.read_file(path, limit=4) == b"6789"
    assert host.read_file(path, limit=40) == b"0123456789"
    assert host.read_file(PurePosixPath(tmp_path / "none")) is None


def test_remove_tree_takes_links_away_not_what_they_lead_to(host: Host, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("gone", "link", "never-there"):
        host.remove_tree(PurePosixPath(tmp_path / name))
        assert not host.exists(PurePosixPath(tmp_path / name))
    assert (tmp_path / "kept").is_dir()


def test_free_bytes_looks_at_the_nearest_parent(host: Host, tmp_path: Path) -> None:
    assert host.free_bytes(PurePosixPath(tmp_path / "not" / "yet")) > 0


# --- processes


def test_a_started_process_is_a_session_with_its_log_appended(
    start: Start, host: Host, log: PurePosixPath
) -> None:
    Path(log).parent.mkdir()
    Path(log).write_text("from before\n")
    ref = start(
        "import os, time; os.write(1, b'%d %d\\n' % (os.getsid(0), os.getpgid(0)));"
        "os.write(2, b'err\\n'); time.sleep(600)"
    )
    wait_for_text(log, "err\n")
    assert Path(log).read_text() == f"from before\n{ref.pid} {ref.pid}\nerr\n"
    assert host.alive(ref)
    assert host.stop(ref, timeout=10)
    assert not host.alive(ref)
    assert procfs.read_stat(ref.pid) is None  # reaped, not a zombie


def test_a_recycled_pid_is_neither_alive_nor_killed(start: Start, host: Host) -> None:
    ref = start(SLEEP)
    before = replace(ref, start_ticks=ref.start_ticks - 1, mark="")
    other_boot = replace(ref, boot_id="another")
    for wrong in (before, other_boot):
        assert not host.alive(wrong)
        assert host.stop(wrong, timeout=0)
    assert host.alive(ref)


def test_a_deaf_process_is_killed_at_the_limit(
    start: Start, host: Host, log: PurePosixPath
) -> None:
    ref = start(DEAF)
    wait_for_text(log, "up")
    began = time.monotonic()
    assert host.stop(ref, timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 30


def test_children_in_other_groups_and_sessions_end_too(
    start: Start, host: Host, mark: str, log: PurePosixPath
) -> None:
    ref = start(FAMILY)
    wait_for_text(log, "up")
    assert len(host.find(mark)) == 4
    assert host.stop(ref, timeout=0.3)
    assert host.find(mark) == []


def test_children_that_outlive_a_killed_leader_end_too(
    start: Start, host: Host, mark: str, log: PurePosixPath
) -> None:
    ref = start(FAMILY)
    wait_for_text(log, "up")
    os.kill(ref.pid, signal.SIGKILL)
    wait_until(lambda: not host.alive(ref))
    assert len(host.find(mark)) == 3
    fresh = LocalHost()  # as a later pdctl would: it has not seen the family
    assert fresh.stop(ref, timeout=0.3)
    assert host.find(mark) == []


def test_a_process_that_ended_by_itself_is_dead_though_nobody_waited(
    start: Start, host: Host
) -> None:
    ref = start("pass")
    wait_until(lambda: not host.alive(ref))
    assert host.stop(ref, timeout=0)


def test_find_tells_deployments_apart_by_their_folder(
    start: Start, host: Host, mark: str, tmp_path: Path
) -> None:
    ref = start(SLEEP, "an argument")
    (found,) = host.find(mark)
    assert found.ref == ref
    assert found.argv[-1] == "an argument"
    assert host.find(f"{tmp_path}/") == [found]
    assert host.find(f"{tmp_path}") == []  # a folder without its slash is another process's name
    assert host.find(f"{mark}-and-more") == []


def test_start_names_a_missing_program(host: Host, log: PurePosixPath) -> None:
    spec = replace(spec_of(SLEEP), command=command("/no/such/python"))
    with pytest.raises(NotFoundError, match="no program `/no/such/python`"):
        host.start(spec, log)


def test_several_are_stopped_side_by_side(start: Start, host: Host, log: PurePosixPath) -> None:
    refs = [start(DEAF, env={MARK_ENV: ""}) for _ in range(3)]
    wait_until(lambda: Path(log).read_text().count("up") == 3)
    with ThreadPoolExecutor() as pool:
        stopped = list(pool.map(lambda ref: host.stop(ref, timeout=0.3), refs))
    assert stopped == [True] * 3
    assert not any(host.alive(ref) for ref in refs)


# --- ports


def listening(address: str) -> socket.socket:
    listener = socket.create_server((address, 0))
    listener.listen()
    return listener


def test_a_ports_holder_is_named(host: Host) -> None:
    with listening("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        held = f"pid {os.getpid()} ({procfs.read_stat(os.getpid()).name})"  # type: ignore[union-attr]
        assert host.port_holder("127.0.0.1", port) == held
        assert host.port_holder("0.0.0.0", port) == held
        assert host.port_holder("127.0.0.2", port) is None
    assert host.port_holder("127.0.0.1", port) is None


@pytest.fixture
def ending(start: Start, log: PurePosixPath) -> tuple[ProcessRef, int]:
    """A process that has ended but for a thread, which holds this port."""
    ref = start(ENDING)
    wait_for_text(log, "\n")
    wait_until(lambda: (stat := procfs.read_stat(ref.pid)) is not None and stat.ends)
    return ref, int(Path(log).read_text())


def test_a_port_is_free_when_who_held_it_has_ended(
    host: Host, ending: tuple[ProcessRef, int]
) -> None:
    ref, port = ending
    assert not host.alive(ref)
    assert host.port_holder("127.0.0.1", port) is None


def test_stop_waits_for_what_is_ending(host: Host, ending: tuple[ProcessRef, int]) -> None:
    ref, port = ending
    assert host.stop(ref, timeout=10)
    socket.create_server(("127.0.0.1", port)).close()


def test_a_chosen_port_is_free(host: Host) -> None:
    port = host.choose_port("127.0.0.1")
    # The kernel gives ports of this range to outgoing connections before an engine binds its own.
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 20000 <= port < first
    assert host.port_holder("127.0.0.1", port) is None


def test_a_foreign_address_is_named(host: Host) -> None:
    for ask in (lambda: host.port_holder("192.0.2.1", 80), lambda: host.choose_port("192.0.2.1")):
        with pytest.raises(UsageError, match=r"`192.0.2.1` is not an address of this machine"):
            ask()
