import hashlib
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
from pdctl.base.errors import (
    NotFoundError,
    PermissionDeniedError,
    TemporaryError,
    UsageError,
)
from pdctl.base.process import MARK_ENV
from pdctl.targets import procfs
from pdctl.targets.base import Host
from pdctl.targets.local import LocalHost
from tests.targets.conftest import Start
from tests.targets.programs import DEAF, FAMILY, SLEEP, spec_of, wait_for_text, wait_until


def python(code: str) -> Command:
    return command(sys.executable, "-c", code)


# --- run


def test_run_gives_both_outputs_and_the_status_apart(host: LocalHost) -> None:
    result = host.run(
        python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"), timeout=20
    )
    assert (result.exit_status, result.stdout, result.stderr, result.ok) == (
        3,
        "out\n",
        "err\n",
        False,
    )


def test_run_tells_lines_while_they_come_and_bytes_that_are_not_text(host: LocalHost) -> None:
    lines: list[str] = []
    code = (
        "import sys; sys.stdout.buffer.write(b'10%\\r20%\\rdone \\xff\\nrest'); sys.stdout.flush()"
    )
    result = host.run(python(code), timeout=20, on_line=lines.append)
    assert lines == ["10%", "20%", "done \ufffd", "rest"]
    assert result.stdout == "10%\r20%\rdone \ufffd\nrest"


def test_run_passes_input_larger_than_a_pipe(host: LocalHost) -> None:
    content = os.urandom(400_000)
    code = "import sys, hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    result = host.run(python(code), timeout=20, stdin=content)
    assert result.stdout.strip() == hashlib.sha256(content).hexdigest()


def test_run_bears_a_command_that_does_not_want_its_input(host: LocalHost) -> None:
    result = host.run(python("print('no')"), timeout=20, stdin=b"x" * 1_000_000)
    assert result.stdout == "no\n"


def test_run_at_the_limit_ends_the_whole_group(host: LocalHost, tmp_path: Path) -> None:
    mark = f"{tmp_path}/run"
    family = command(sys.executable, "-c", FAMILY, env={MARK_ENV: mark})
    lines: list[str] = []
    with pytest.raises(TemporaryError) as caught:
        host.run(family, timeout=0.6, on_line=lines.append)
    assert "did not end within 0.6 s" in caught.value.message
    assert caught.value.detail == tuple(lines)
    assert host.find(mark) == []


def test_run_ends_with_its_command_though_a_child_keeps_the_pipe(host: LocalHost) -> None:
    code = "import os, time; os.fork() or time.sleep(60); print('parent')"
    began = time.monotonic()
    result = host.run(python(code), timeout=20)
    assert time.monotonic() - began < 30
    assert "parent" in result.stdout


def test_run_interrupted_leaves_nothing(host: LocalHost, tmp_path: Path) -> None:
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


def test_run_names_a_missing_program_and_a_missing_directory(
    host: LocalHost, tmp_path: Path
) -> None:
    with pytest.raises(NotFoundError, match="no program `/no/such/program`"):
        host.run(command("/no/such/program"), timeout=1)
    with pytest.raises(NotFoundError, match=f"no working directory `{tmp_path}/gone`"):
        host.run(command(sys.executable, cwd=f"{tmp_path}/gone"), timeout=1)


def test_the_environment_is_the_allow_list_and_the_commands_own(
    host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_SOMETHING", "stray")
    monkeypatch.setenv("PYTHONPATH", "/stray")
    monkeypatch.setenv("PIP_INDEX_URL", "for installers")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    installers = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    result = host.run(command("env", "-0", env={"OWN": "1"}), timeout=20)
    assert dict(line.split("=", 1) for line in result.stdout.split("\0")[:-1]) == {
        **host.inherited_env(),
        **installers,
        "OWN": "1",
    }
    assert "PIP_INDEX_URL" not in host.inherited_env()
    assert "PATH" in host.inherited_env()


# --- files


def test_write_file_replaces_whole_and_keeps_the_old_on_failure(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = PurePosixPath(tmp_path / "a" / "b" / "file")
    host.write_file(path, b"one", mode=0o600)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pdctl.targets.local.os.fsync", full)
    with pytest.raises(TemporaryError, match="no space left for"):
        host.write_file(path, b"two")
    assert host.read_file(path) == b"one"
    assert os.listdir(tmp_path / "a" / "b") == ["file"]


def test_read_file_gives_the_end_and_none_for_nothing(host: LocalHost, tmp_path: Path) -> None:
    path = PurePosixPath(tmp_path / "log")
    Path(path).write_bytes(b"0123456789")
    assert host.read_file(path) == b"0123456789"
    assert host.read_file(path, limit=4) == b"6789"
    assert host.read_file(path, limit=40) == b"0123456789"
    assert host.read_file(PurePosixPath(tmp_path / "none")) is None


def test_a_file_that_may_not_be_read_is_no_permission(
    host: LocalHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(PermissionDeniedError, match=r"no permission for `.*secret`"):
        host.read_file(PurePosixPath(tmp_path / "secret"))


def test_remove_tree_takes_links_away_not_what_they_lead_to(
    host: LocalHost, tmp_path: Path
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    for name in ("gone", "link", "never-there"):
        host.remove_tree(PurePosixPath(tmp_path / name))
        assert not host.exists(PurePosixPath(tmp_path / name))
    assert (tmp_path / "kept").is_dir()


def test_free_bytes_looks_at_the_nearest_parent(host: LocalHost, tmp_path: Path) -> None:
    assert host.free_bytes(PurePosixPath(tmp_path / "not" / "yet")) > 0


# --- processes


def test_a_started_process_is_a_session_with_its_log_appended(
    start: Start, host: LocalHost, log: PurePosixPath
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


def test_a_recycled_pid_is_neither_alive_nor_killed(start: Start, host: LocalHost) -> None:
    ref = start(SLEEP)
    before = replace(ref, start_ticks=ref.start_ticks - 1, mark="")
    other_boot = replace(ref, boot_id="another")
    for wrong in (before, other_boot):
        assert not host.alive(wrong)
        assert host.stop(wrong, timeout=0)
    assert host.alive(ref)


def test_a_deaf_process_is_killed_at_the_limit(
    start: Start, host: LocalHost, log: PurePosixPath
) -> None:
    ref = start(DEAF)
    wait_for_text(log, "up")
    began = time.monotonic()
    assert host.stop(ref, timeout=0.3)
    assert 0.3 <= time.monotonic() - began < 30


def test_children_in_other_groups_and_sessions_end_too(
    start: Start, host: LocalHost, mark: str, log: PurePosixPath
) -> None:
    ref = start(FAMILY)
    wait_for_text(log, "up")
    assert len(host.find(mark)) == 4
    assert host.stop(ref, timeout=0.3)
    assert host.find(mark) == []


def test_children_that_outlive_a_killed_leader_end_too(
    start: Start, host: LocalHost, mark: str, log: PurePosixPath
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
    start: Start, host: LocalHost
) -> None:
    ref = start("pass")
    wait_until(lambda: not host.alive(ref))
    assert host.stop(ref, timeout=0)


def test_find_tells_deployments_apart_by_their_folder(
    start: Start, host: LocalHost, mark: str, tmp_path: Path
) -> None:
    ref = start(SLEEP, "an argument")
    (found,) = host.find(mark)
    assert found.ref == ref
    assert found.argv[-1] == "an argument"
    assert host.find(f"{tmp_path}/") == [found]
    assert host.find(f"{tmp_path}") == []  # a folder without its slash is another process's name
    assert host.find(f"{mark}-and-more") == []


def test_start_names_a_missing_program(host: LocalHost, log: PurePosixPath) -> None:
    spec = replace(spec_of(SLEEP), command=command("/no/such/python"))
    with pytest.raises(NotFoundError, match="no program `/no/such/python`"):
        host.start(spec, log)


def test_several_are_stopped_side_by_side(
    start: Start, host: LocalHost, log: PurePosixPath
) -> None:
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


def test_a_ports_holder_is_named(host: LocalHost) -> None:
    with listening("127.0.0.1") as listener:
        port = listener.getsockname()[1]
        held = f"pid {os.getpid()} ({procfs.read_stat(os.getpid()).name})"  # type: ignore[union-attr]
        assert host.port_holder("127.0.0.1", port) == held
        assert host.port_holder("0.0.0.0", port) == held
        assert host.port_holder("127.0.0.2", port) is None
    assert host.port_holder("127.0.0.1", port) is None


def test_a_chosen_port_is_free(host: LocalHost) -> None:
    port = host.choose_port("127.0.0.1")
    # The kernel gives ports of this range to outgoing connections before an engine binds its own.
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert 20000 <= port < first
    assert host.port_holder("127.0.0.1", port) is None


def test_a_foreign_address_is_named(host: LocalHost) -> None:
    for ask in (lambda: host.port_holder("192.0.2.1", 80), lambda: host.choose_port("192.0.2.1")):
        with pytest.raises(UsageError, match=r"`192.0.2.1` is not an address of this machine"):
            ask()


def test_local_is_a_host(host: LocalHost) -> None:
    as_host: Host = host
    assert as_host.name == "localhost"
