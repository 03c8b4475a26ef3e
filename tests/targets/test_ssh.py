"""Logging in, host keys, jump hosts, and what happens when something is wrong. Real servers."""

import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from pdctl.base.command import Secret, command
from pdctl.base.errors import (
    BadAnswerError,
    PermissionDeniedError,
    TemporaryError,
    UnreachableError,
)
from pdctl.base.exits import ExitCode
from pdctl.base.process import MARK_ENV
from pdctl.targets import procfs
from pdctl.targets.local import LocalHost
from pdctl.targets.ssh import bundle
from pdctl.targets.ssh.connect import Links
from pdctl.targets.ssh.host import SshHost, connect_all
from tests.targets.programs import SLEEP, spec_of, wait_for_text, wait_until
from tests.targets.sshd import Sshd, keygen, nobodys_ssh, running_sshd, user, with_path

TRUE = command("true")


def reaches(host: SshHost) -> bool:
    try:
        return host.run(TRUE, timeout=20).ok
    finally:
        host.close()


def shell(line: str, home: Path) -> None:
    """Run what a hint says, as the user would."""
    subprocess.run(
        ["/bin/sh", "-c", line], check=True, timeout=20, env={**os.environ, "HOME": str(home)}
    )


def hinted(error: PermissionDeniedError, word: str) -> str:
    """The command of the hint that has this word."""
    for hint in error.hints:
        found = re.search(r"`([^`]*)`", hint)
        if word in hint and found:
            return found[1]
    raise AssertionError(f"no hint with {word}: {error.hints}")


# --- keys ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_keys_of_every_kind_log_in(sshd: Sshd, tmp_path: Path, kind: str) -> None:
    key = keygen(tmp_path / "another key", kind)
    with running_sshd(tmp_path / "s", more=f"AuthorizedKeysFile {sshd.key}.pub") as server:
        authorized = server.directory / "key.pub"
        authorized.write_text(Path(f"{key}.pub").read_text())
        assert reaches(server.host(key_file=key))


def test_a_wrong_key_is_no_permission_and_is_named(sshd: Sshd, tmp_path: Path) -> None:
    key = keygen(tmp_path / "wrong")
    with pytest.raises(PermissionDeniedError) as caught:
        reaches(sshd.host(key_file=key))
    error = caught.value
    assert error.exit_code == ExitCode.NO_PERMISSION == 77
    assert error.message == f"the server accepts no key for user `{user()}`"
    assert error.where == f"{user()}@127.0.0.1:{sshd.port}"
    assert error.detail == (f"refused: {key}",)
    assert error.hints == (
        f"see what OpenSSH does: `ssh -v -p {sshd.port} -i {key} {user()}@127.0.0.1 true`",
    )


def test_a_key_file_that_is_missing_or_no_key_is_named(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("not a key\n")
    for name, words in (("gone", "there is no such file"), ("text", "not a key that can be used")):
        with pytest.raises(PermissionDeniedError, match="there is no key to log in as") as caught:
            reaches(sshd.host(key_file=tmp_path / name))
        assert words in caught.value.detail[0]


@contextmanager
def ssh_agent(socket_path: Path) -> Iterator[dict[str, str]]:
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket_path)], stdout=subprocess.DEVNULL
    )
    try:
        wait_until(socket_path.exists)
        yield {"SSH_AUTH_SOCK": str(socket_path)}
    finally:
        process.terminate()
        process.wait(10)


def test_a_key_with_a_passphrase_works_by_the_agent_only(sshd: Sshd, tmp_path: Path) -> None:
    key = keygen(tmp_path / "locked", passphrase="geheim")
    ssh = nobodys_ssh(tmp_path)
    with running_sshd(tmp_path / "s") as server:
        (server.directory / "key.pub").write_text(Path(f"{key}.pub").read_text())
        host = SshHost("h", server.login(key_file=key), ssh=ssh)
        with pytest.raises(PermissionDeniedError, match="there is no key to log in") as caught:
            reaches(host)
        assert caught.value.detail == (
            f"{key}: it has a passphrase, and the agent does not hold it",
        )
        assert hinted(caught.value, "ssh-add") == f"ssh-add {key}"
        with ssh_agent(tmp_path / "agent") as environ:
            ask = tmp_path / "ask"
            ask.write_text("#!/bin/sh\necho geheim\n")
            ask.chmod(0o700)
            subprocess.run(
                ["ssh-add", "-q", str(key)],
                env={
                    **os.environ,
                    **environ,
                    "SSH_ASKPASS": str(ask),
                    "SSH_ASKPASS_REQUIRE": "force",
                },
                check=True,
                timeout=20,
            )
            with_agent = replace(ssh, environ={**ssh.environ, **environ})
            assert reaches(SshHost("h", server.login(key_file=key), ssh=with_agent))
            # Without the file, the agent's keys are tried all the same ...
            assert reaches(SshHost("h", server.login(key_file=None), ssh=with_agent))
            # ... unless the configuration says which keys count.
            only = nobodys_ssh(tmp_path, "Host *\n  IdentitiesOnly yes\n")
            only = replace(only, environ=with_agent.environ)
            with pytest.raises(PermissionDeniedError):
                reaches(SshHost("h", server.login(key_file=None), ssh=only))


def test_an_agent_that_is_dead_or_silent_does_not_stop_the_key_file(
    sshd: Sshd, tmp_path: Path
) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent"))
    silent.listen()
    try:
        for name in ("gone", "silent"):
            ssh = replace(
                nobodys_ssh(tmp_path),
                environ={"HOME": str(tmp_path), "SSH_AUTH_SOCK": str(tmp_path / name)},
            )
            assert reaches(SshHost("h", sshd.login(connect_timeout=20.0), ssh=ssh))
    finally:
        silent.close()


# --- host keys -----------------------------------------------------------------------------------


def test_an_unknown_host_is_refused_with_the_command_that_helps(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    host = SshHost("h", sshd.login(pinned=None), ssh=nobodys_ssh(tmp_path))
    with pytest.raises(
        PermissionDeniedError, match="the host's key is not known: ssh-ed25519 SHA256:"
    ) as caught:
        reaches(host)
    assert caught.value.exit_code == 77
    scan = hinted(caught.value, "ssh-keyscan")
    assert scan == f"ssh-keyscan -p {sshd.port} 127.0.0.1 >> {tmp_path}/.ssh/known_hosts"
    shell(f"{scan} 2>/dev/null", tmp_path)
    assert reaches(SshHost("h", sshd.login(pinned=None), ssh=nobodys_ssh(tmp_path)))
    # A hashed file says the same.
    shell(f"ssh-keygen -q -H -f {tmp_path}/.ssh/known_hosts >/dev/null 2>&1", tmp_path)
    assert "127.0.0.1" not in (tmp_path / ".ssh" / "known_hosts").read_text()
    assert reaches(SshHost("h", sshd.login(pinned=None), ssh=nobodys_ssh(tmp_path)))


def test_a_first_key_is_kept_only_when_asked_and_then_it_counts(sshd: Sshd, tmp_path: Path) -> None:
    pinned = tmp_path / "state" / "known_hosts"
    assert reaches(sshd.host(pin=True, pinned=pinned))
    assert pinned.read_text() == f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n"
    assert reaches(sshd.host(pin=True, pinned=pinned))
    assert len(pinned.read_text().splitlines()) == 1
    assert reaches(sshd.host(pinned=pinned))  # strict again


def test_a_changed_key_is_refused_with_the_line_and_the_command_also_when_pinning(
    sshd: Sshd, tmp_path: Path
) -> None:
    keygen(tmp_path / "other")
    known = tmp_path / "kn own"
    other = " ".join(Path(f"{tmp_path}/other.pub").read_text().split()[:2])
    known.write_text(f"# mine\n[127.0.0.1]:{sshd.port} {other}\n")
    for pin in (False, True):
        with pytest.raises(PermissionDeniedError, match="the host's key CHANGED") as caught:
            reaches(sshd.host(pinned=known, pin=pin))
        assert caught.value.exit_code == 77
        assert caught.value.expected == f"the key of {known}:2"
        remove = hinted(caught.value, "ssh-keygen")
        assert remove == f"ssh-keygen -R '[127.0.0.1]:{sshd.port}' -f '{known}'"
    shell(f"{remove} >/dev/null 2>&1", tmp_path)
    with pytest.raises(PermissionDeniedError, match="is not known"):
        reaches(sshd.host(pinned=known))


def test_a_host_with_several_keys_is_asked_for_the_known_one(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    rsa = keygen(tmp_path / "s" / "rsa_key", "rsa")
    with running_sshd(tmp_path / "s", more=f"HostKey {rsa}") as server:
        known = " ".join(Path(f"{rsa}.pub").read_text().split()[:2])
        server.known_hosts.write_text(f"[127.0.0.1]:{server.port} {known}\n")
        assert reaches(server.host())


def test_a_revoked_key_is_refused_though_it_is_known(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known"
    line = f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n"
    known.write_text(f"{line}@revoked {line}")
    with pytest.raises(PermissionDeniedError, match="revoked"):
        reaches(sshd.host(pinned=known))


# --- hosts that do not answer --------------------------------------------------------------------


@contextmanager
def listener(serve: bytes | None = None) -> Iterator[int]:
    """Something that listens and says this, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def accept() -> None:
            try:
                while True:
                    taken.append(server.accept()[0])
                    if serve is not None:
                        taken[-1].sendall(serve)
            except OSError:
                pass

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for each in taken:
                each.close()
            thread.join(5)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (None, "no SSH server answered within 1 s"),
        (b"SSH-2.0-tarpit\r\n", "did not answer within 1 s"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200, "no SSH"),
    ],
)
def test_a_silent_listener_takes_the_limit_and_no_more(
    sshd: Sshd, said: bytes | None, words: str
) -> None:
    with listener(said) as port:
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=words) as caught:
            reaches(sshd.host(port=port, connect_timeout=1.0))
        assert time.monotonic() - began < 4
        assert caught.value.exit_code == ExitCode.UNREACHABLE == 69


def test_what_is_not_there_is_named(sshd: Sshd) -> None:
    with listener() as port:
        pass
    with pytest.raises(UnreachableError, match=f"port {port} cannot be connected to: .*refused"):
        reaches(sshd.host(port=port))
    with pytest.raises(UnreachableError, match=r"the name `no-such-host.invalid` is not known"):
        reaches(sshd.host(address="no-such-host.invalid"))


def test_several_at_once_dead_ones_cost_the_limit_once(sshd: Sshd) -> None:
    with listener() as silent:
        hosts = [sshd.host(f"h{number}") for number in range(4)]
        hosts += [sshd.host(f"dead{n}", port=silent, connect_timeout=2.0) for n in range(12)]
        began = time.monotonic()
        errors = connect_all(hosts)
        took = time.monotonic() - began
        assert sorted(errors) == sorted(f"dead{number}" for number in range(12))
        assert all(isinstance(error, UnreachableError) for error in errors.values())
        assert took < 2.0 + 6.0
        began = time.monotonic()  # nor is a dead one waited for again by the next question
        with pytest.raises(UnreachableError):
            hosts[-1].exists(PurePosixPath("/"))
        assert time.monotonic() - began < 1
        for host in hosts:
            host.close()


# --- commands ------------------------------------------------------------------------------------


def test_a_limit_is_not_a_lost_connection(ssh_host: SshHost) -> None:
    with pytest.raises(TemporaryError, match="did not end within") as caught:
        ssh_host.run(command("sleep", "60"), timeout=0.3)
    assert caught.value.exit_code == ExitCode.TRY_AGAIN == 75
    assert ssh_host.run(TRUE, timeout=20).ok


def test_a_killed_connection_is_told_and_ends_its_command_and_the_next_call_connects_again(
    tmp_path: Path,
) -> None:
    mark = f"{tmp_path}/run"
    here = LocalHost()
    with running_sshd(tmp_path / "s") as server:
        host = server.host()
        host.connect()
        sleep = command(sys.executable, "-c", SLEEP, env={MARK_ENV: mark})
        log = PurePosixPath(tmp_path / "p.log")
        kept = host.start(spec_of(SLEEP, env={MARK_ENV: f"{tmp_path}/kept"}), log)
        with ThreadPoolExecutor(1) as pool:
            lines: list[str] = []
            running = pool.submit(host.run, sleep, timeout=60, on_line=lines.append)
            wait_until(lambda: lines == ["up"])
            began = time.monotonic()
            server.stop()
            with pytest.raises(UnreachableError, match="the connection was lost") as caught:
                running.result(20)
        assert time.monotonic() - began < 10
        assert caught.value.exit_code == 69
        wait_until(lambda: here.find(mark) == [])
        with running_sshd(tmp_path / "s", port=server.port):
            wait_until(lambda: reaches_again(host), limit=20)
            assert host.alive(kept)  # started processes do not care
            assert host.stop(kept, timeout=5)
        host.close()


def reaches_again(host: SshHost) -> bool:
    try:
        return host.run(TRUE, timeout=20).ok
    except UnreachableError:
        return False


def test_a_started_process_outlives_the_connection(sshd: Sshd, tmp_path: Path) -> None:
    mark, log = f"{tmp_path}/prefill-0", PurePosixPath(tmp_path / "p.log")
    first = sshd.host()
    ref = first.start(spec_of(SLEEP, env={MARK_ENV: mark}), log)
    wait_for_text(log, "up")
    first.close()
    second = sshd.host()
    assert second.alive(ref)
    assert [each.ref for each in second.find(mark)] == [ref]
    assert second.stop(ref, timeout=5)
    assert LocalHost().find(mark) == []
    second.close()


def test_many_threads_share_one_connection(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "s") as server:
        host = server.host()

        def work(number: int) -> tuple[str, bytes | None]:
            path = PurePosixPath(tmp_path / f"f{number}")
            content = bytes([number]) * 200_000
            host.write_file(path, content)
            result = host.run(command("sh", "-c", f"sleep 0.2; echo {number}"), timeout=60)
            assert host.read_file(path) == content
            return result.stdout, content[:1]

        with ThreadPoolExecutor(24) as pool:
            results = list(pool.map(work, range(48)))
        assert results == [(f"{number}\n", bytes([number])) for number in range(48)]
        log = (server.directory / "sshd.log").read_text()
        assert log.count("Accepted publickey") == 1
        host.close()
        wait_until(lambda: server.sessions() == set())


def test_much_output_costs_the_host_no_memory(ssh_host: SshHost) -> None:
    far = ssh_host._connected().greeting["pid"]
    before = _peak(far)
    lines = 0

    def count(line: str) -> None:
        nonlocal lines
        lines += 1

    script = "yes 0123456789abcdef0123456789abcdef0123456789abcdef | head -c 50000000"
    result = ssh_host.run(command("sh", "-c", script), timeout=60, on_line=count)
    assert len(result.stdout) == 50_000_000
    assert lines == -(-50_000_000 // 49)
    assert _peak(far) - before < 20_000


def _peak(pid: int) -> int:
    """Largest resident size so far, KiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1])  # type: ignore[index]


def test_a_hundred_megabytes_arrive_whole_and_a_damaged_file_is_refused(
    ssh_host: SshHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = os.urandom(10_000_000) * 10
    path = PurePosixPath(tmp_path / "weights")
    ssh_host.write_file(path, content, mode=0o600)
    assert Path(path).read_bytes() == content
    assert ssh_host.read_file(path) == content
    other = "0" * 64
    with pytest.raises(TemporaryError, match="damaged; the old file was kept"):
        ssh_host._call("write", content=b"new", path=str(path), mode=0o600, digest=other)
    assert Path(path).stat().st_size == len(content)
    assert os.listdir(tmp_path) == ["weights"]


def test_a_secret_is_in_no_argument_and_no_log(tmp_path: Path) -> None:
    secret = "hf_s3cr3t-t0ken"
    with running_sshd(tmp_path / "s", more="LogLevel DEBUG") as server:
        host = server.host()
        lines: list[str] = []
        seen: list[str] = []

        def look(line: str) -> None:
            lines.append(line)
            seen.extend(" ".join(procfs.read_argv(pid)) for pid in procfs.read_table())

        code = "import os; print(len(os.environ['HF_TOKEN']), flush=True)"
        mine = command(sys.executable, "-c", code, env={"HF_TOKEN": Secret(secret)})
        host.run(mine, timeout=20, on_line=look)
        host.write_file(PurePosixPath(tmp_path / "key"), secret.encode(), mode=0o600)
        assert lines == [str(len(secret))]
        assert any("-X utf8" in line for line in seen)
        assert not any(secret in line for line in seen)
        with pytest.raises(TemporaryError) as caught:
            host.run(command("sh", "-c", "sleep 9", "sh", Secret(secret)), timeout=0.1)
        assert secret not in str(caught.value.as_dict())
        assert secret not in (server.directory / "sshd.log").read_text()
        host.close()


# --- root ----------------------------------------------------------------------------------------

_SUDO = """#!/bin/sh
[ "$1" = -n ] || exit 9
shift
PDCTL_ROOT=1 exec "$@"
"""
_NO_SUDO = "#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n"


@pytest.mark.parametrize("allowed", [True, False])
def test_root_is_asked_for_by_sudo_without_a_password(tmp_path: Path, allowed: bool) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "sudo").write_text(_SUDO if allowed else _NO_SUDO)
    (bin_ / "sudo").chmod(0o755)
    path = with_path(f"{bin_}:/usr/bin:/bin")
    with running_sshd(tmp_path / "s", more=path) as server:
        host = server.host()
        root = host.as_root()
        try:
            if allowed:
                environ = command("sh", "-c", "tr '\\0' '\\n' </proc/$PPID/environ")
                assert "PDCTL_ROOT=1" in root.run(environ, timeout=20).stdout.splitlines()
                assert "PDCTL_ROOT=1" not in host.run(environ, timeout=20).stdout.splitlines()
            else:
                with pytest.raises(PermissionDeniedError, match="`sudo -n` does not") as caught:
                    root.run(TRUE, timeout=20)
                assert caught.value.detail == ("sudo: a password is required",)
                assert host.run(TRUE, timeout=20).ok
        finally:
            root.close()
            host.close()


# --- hosts that are odd --------------------------------------------------------------------------


def test_a_host_without_python_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "USUAL", "/no/python3")
    (tmp_path / "empty").mkdir()
    with running_sshd(tmp_path / "s", more=with_path(f"{tmp_path}/empty")) as server:
        with pytest.raises(BadAnswerError, match="there is no `python3` on the host") as caught:
            reaches(server.host())
        assert caught.value.hints == ("on Ubuntu: `sudo apt-get install -y python3`",)


def test_a_python_that_is_too_old_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "USUAL", "/no/python3")
    fake = tmp_path / "bin" / "python3"
    fake.parent.mkdir()
    fake.write_text(
        "#!/bin/sh\necho 'pdctl needs Python 3.9 or newer, and this is 3.6.9' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    with (
        running_sshd(tmp_path / "s", more=with_path(f"{fake.parent}:/bin")) as server,
        pytest.raises(BadAnswerError, match="`python3` is too old"),
    ):
        reaches(server.host())


@pytest.mark.parametrize("chatter", ["echo welcome; exec {}", "head -c 30000 /dev/zero; exec {}"])
def test_login_scripts_may_talk(tmp_path: Path, chatter: str) -> None:
    script = tmp_path / "login"
    script.write_text("#!/bin/sh\n" + chatter.format('/bin/sh -c "$SSH_ORIGINAL_COMMAND"') + "\n")
    script.chmod(0o755)
    with running_sshd(tmp_path / "s", more=f"ForceCommand {script}") as server:
        assert reaches(server.host())


def test_a_host_that_runs_something_else_says_so(tmp_path: Path) -> None:
    more = "ForceCommand echo only backups here >&2; exit 3"
    with running_sshd(tmp_path / "s", more=more) as server:
        with pytest.raises(UnreachableError, match="runs no commands for us: exit status 3") as e:
            reaches(server.host())
        assert e.value.detail == ("only backups here",)


def test_a_far_side_that_never_starts_takes_the_limit_and_no_more(tmp_path: Path) -> None:
    with running_sshd(tmp_path / "s", more="ForceCommand exec sleep 600") as server:
        with pytest.raises(UnreachableError, match="Python did not start on it within 3 s"):
            reaches(server.host(connect_timeout=3.0))
        wait_until(lambda: server.sessions() == set())


# --- the way there -------------------------------------------------------------------------------


def test_through_one_and_two_jump_hosts_logged_in_to_once(tmp_path: Path) -> None:
    with (
        running_sshd(tmp_path / "one") as one,
        running_sshd(tmp_path / "two") as two,
        running_sshd(tmp_path / "end") as end,
    ):
        known = tmp_path / "known"
        known.write_text("".join(s.known_hosts.read_text() for s in (one, two, end)))
        for server in (one, two):
            (server.directory / "key.pub").write_text(Path(f"{end.key}.pub").read_text())
        jump = ",".join(f"{user()}@127.0.0.1:{server.port}" for server in (one, two))
        links = Links()
        hosts = [
            SshHost(
                f"h{n}", end.login(jump=jump, pinned=known), links=links, ssh=nobodys_ssh(tmp_path)
            )
            for n in range(3)
        ]
        assert connect_all(hosts) == {}
        for server, logins in ((one, 1), (two, 1), (end, 3)):
            log = (server.directory / "sshd.log").read_text()
            assert log.count("Accepted publickey") == logins
        hosts[0].close()
        assert hosts[1].run(TRUE, timeout=20).ok  # the jump host is still needed
        for host in hosts[1:]:
            host.close()
        for server in (one, two, end):
            wait_until(lambda server=server: server.sessions() == set())
        with pytest.raises(PermissionDeniedError, match="not known") as caught:
            reaches(
                SshHost(
                    "h", end.login(jump=jump, pinned=end.known_hosts), ssh=nobodys_ssh(tmp_path)
                )
            )
        assert caught.value.where == f"{user()}@127.0.0.1:{one.port}"


def test_a_jump_host_that_cannot_go_on_says_where(sshd: Sshd) -> None:
    with listener() as port:
        pass
    jump = f"127.0.0.1:{sshd.port}"
    with pytest.raises(UnreachableError, match=r"the jump host cannot connect to 127.0.0.1:") as e:
        reaches(sshd.host(port=port, jump=jump))
    assert f"by way of {user()}@127.0.0.1:{sshd.port}" in (e.value.where or "")
    with listener() as silent, pytest.raises(UnreachableError, match="within 2 s"):
        reaches(sshd.host(port=silent, jump=jump, connect_timeout=2.0))


_RELAY = """
import socket, sys, threading, os
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
def pump():
    while data := os.read(0, 65536): s.sendall(data)
threading.Thread(target=pump, daemon=True).start()
while data := s.recv(65536): os.write(1, data)
"""


def test_the_users_own_configuration_is_heard(sshd: Sshd, tmp_path: Path) -> None:
    relay = tmp_path / "relay.py"
    relay.write_text(_RELAY)
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "more").write_text(f"  Port {sshd.port}\n  HostName 127.0.0.1\n")
    ssh = nobodys_ssh(
        tmp_path,
        f"""
Match host far,proxied,jumped
  User {user()}
  IdentityFile {sshd.key}
  IdentitiesOnly yes
  UserKnownHostsFile {sshd.known_hosts}
Host far
  Include {tmp_path}/.ssh/more
Host proxied
  HostName 127.0.0.1
  HostKeyAlias [127.0.0.1]:{sshd.port}
  ProxyCommand {shlex.quote(sys.executable)} {relay} %h {sshd.port}
Host jumped
  Include {tmp_path}/.ssh/more
  ProxyJump far
""",
    )
    for name in ("far", "proxied", "jumped"):
        host = SshHost(
            name, sshd.login(address=name, port=None, key_file=None, pinned=None), ssh=ssh
        )
        assert host.run(TRUE, timeout=20).ok, name
        if name == "proxied":
            assert _running(str(relay))
        host.close()
    wait_until(lambda: not _running(str(relay)))


def _running(word: str) -> bool:
    return any(word in procfs.read_argv(pid) for pid in procfs.read_table())


def test_a_proxy_command_that_fails_or_hangs_is_an_unreachable_host(
    sshd: Sshd, tmp_path: Path
) -> None:
    for line, words in (("false", "no SSH connection came to be"), ("sleep 600", "within 1 s")):
        ssh = nobodys_ssh(tmp_path, f"Host *\n  ProxyCommand {line}\n")
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=words):
            reaches(SshHost("h", sshd.login(connect_timeout=1.0), ssh=ssh))
        assert time.monotonic() - began < 5


def test_nothing_is_left_of_a_connection(tmp_path: Path) -> None:
    threads = threading.active_count()
    files = len(os.listdir("/proc/self/fd"))
    with running_sshd(tmp_path / "s") as server:
        for _ in range(3):
            assert reaches(server.host())
        wait_until(lambda: server.sessions() == set())
        wait_until(lambda: threading.active_count() <= threads)
    assert len(os.listdir("/proc/self/fd")) <= files


def test_a_newer_python_in_the_path_serves_where_the_systems_is_too_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    monkeypatch.setattr(bundle, "USUAL", str(old))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(sys.executable)
    with running_sshd(tmp_path / "s", more=with_path(f"{tmp_path}/bin:/bin")) as server:
        assert reaches(server.host())


_RUNS = """
import sys
from pathlib import Path
from pdctl.base.command import command
from pdctl.base.process import MARK_ENV
from pdctl.targets.ssh.access import Login, OpenSsh
from pdctl.targets.ssh.host import SshHost
port, key, known, mark = sys.argv[1:]
login = Login("127.0.0.1", port=int(port), key_file=Path(key), pinned=Path(known))
host = SshHost("h", login, ssh=OpenSsh(environ={"HOME": "/nonexistent"}))
sleep = command("sh", "-c", "echo up; exec sleep 600", env={MARK_ENV: mark})
host.run(sleep, timeout=600, on_line=lambda line: print(line, flush=True))
"""


def test_a_killed_pdctl_leaves_no_command_behind(sshd: Sshd, tmp_path: Path) -> None:
    mark = f"{tmp_path}/run"
    words = (str(sshd.port), str(sshd.key), str(sshd.known_hosts), mark)
    with subprocess.Popen([sys.executable, "-c", _RUNS, *words], stdout=subprocess.PIPE) as pdctl:
        assert pdctl.stdout is not None
        assert pdctl.stdout.readline() == b"up\n"
        assert len(LocalHost().find(mark)) == 1
        pdctl.kill()
    wait_until(lambda: LocalHost().find(mark) == [])
