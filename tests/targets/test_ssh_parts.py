"""The parts of the ssh target that need no server."""

import ast
import json
import queue
import re
import socket
import subprocess
import sys
import threading
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.base.errors import BadAnswerError, UnreachableError, UsageError
from pdctl.targets.ssh import bundle, far, frames, known_hosts, near
from pdctl.targets.ssh.access import (
    Answers,
    Hop,
    Login,
    Route,
    parse_answers,
    route_of,
    split_jump,
)
from pdctl.targets.ssh.connect import Links
from pdctl.targets.ssh.frames import Frame, Unpacker
from pdctl.targets.ssh.near import Near, error_of
from tests.targets.sshd import keygen, nobodys_ssh

# --- frames --------------------------------------------------------------------------------------

FRAMES = st.lists(
    st.builds(
        Frame,
        call=st.integers(0, 2**32 - 1),
        kind=st.integers(frames.CALL, frames.PONG),
        body=st.binary(max_size=200),
    ),
    max_size=8,
)


@given(sent=FRAMES, cuts=st.lists(st.integers(1, 40), min_size=1))
def test_frames_come_out_as_they_went_in_however_they_are_cut(
    sent: list[Frame], cuts: list[int]
) -> None:
    wire = b"".join(map(frames.pack, sent))
    unpacker, got, at = Unpacker(), [], 0
    while at < len(wire):
        size = cuts[len(got) % len(cuts)]
        got += unpacker.feed(wire[at : at + size])
        at += size
    assert got == sent


@pytest.mark.parametrize(
    "noise", [b"Last login: today\r\n", b"\0" * 9, b"\0\0\0\1\1\xff\xff\xff\xff"]
)
def test_what_is_no_frame_is_refused(noise: bytes) -> None:
    with pytest.raises(frames.BrokenFrameError):
        list(Unpacker().feed(noise))


# --- known_hosts ---------------------------------------------------------------------------------

KEY, OTHER = "AAAAC3NzaC1lZDI1NTE5AAAAIA==", "AAAAC3NzaC1lZDI1NTE5AAAAIB=="


@pytest.mark.parametrize(
    ("text", "host", "port", "meaning"),
    [
        ("h ssh-ed25519 {key}", "h", 22, "known"),
        ("H ssh-ed25519 {key}", "h", 22, "known"),
        ("h ssh-ed25519 {key}", "H", 22, "known"),
        ("h ssh-ed25519 {key}", "h", 2222, "known"),  # as OpenSSH
        ("[h]:2222 ssh-ed25519 {key}", "h", 22, "unknown"),
        ("[h]:2222 ssh-ed25519 {other}", "h", 2222, "changed"),
        ("h ssh-ed25519 {other}", "h", 2222, "unknown"),
        ("h ssh-rsa {key}", "h", 22, "changed"),
        ("h ssh-ed25519 {other}\nh ssh-ed25519 {key}", "h", 22, "known"),
        ("a,h,b ssh-ed25519 {key} comment", "h", 22, "known"),
        ("*.example.com,!bad.example.com ssh-ed25519 {key}", "ok.example.com", 22, "known"),
        ("*.example.com,!bad.example.com ssh-ed25519 {key}", "bad.example.com", 22, "unknown"),
        ("10.0.0.? ssh-ed25519 {key}", "10.0.0.7", 22, "known"),
        ("[10.0.0.*]:2222 ssh-ed25519 {key}", "10.0.0.7", 2222, "known"),
        ("# h ssh-ed25519 {key}\n\nnonsense\n@odd", "h", 22, "unknown"),
        ("@cert-authority * ssh-ed25519 {key}", "h", 22, "unknown"),
        ("@revoked * ssh-ed25519 {key}\nh ssh-ed25519 {key}", "h", 22, "revoked"),
        ("@revoked * ssh-ed25519 {other}\nh ssh-ed25519 {key}", "h", 22, "known"),
        ("|1|damaged ssh-ed25519 {key}\n|1|a|b ssh-ed25519 {key}", "h", 22, "unknown"),
    ],
)
def test_what_a_key_means(text: str, host: str, port: int, meaning: str) -> None:
    entries = list(known_hosts.parse("f", text.format(key=KEY, other=OTHER)))
    assert known_hosts.judge(entries, host, port, "ssh-ed25519", KEY).meaning == meaning


def test_names_and_hashes_agree_with_ssh_keygen(tmp_path: Path) -> None:
    key = " ".join(Path(f"{keygen(tmp_path / 'k')}.pub").read_text().split()[:2])
    file = tmp_path / "known"
    file.write_text(f"plain {key}\n[other]:2200 {key}\n::1 {key}\n[::1]:99 {key}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    entries = list(known_hosts.parse(str(file), file.read_text()))
    kind, base64 = key.split()
    for number, (host, port) in enumerate(
        [("plain", 22), ("other", 2200), ("::1", 22), ("::1", 99)], 1
    ):
        verdict = known_hosts.judge(entries, host, port, kind, base64)
        assert [each.where for each in verdict.entries] == [f"{file}:{number}"]
        name = known_hosts.name_of(host, port)
        found = subprocess.run(
            ["ssh-keygen", "-l", "-F", name, "-f", str(file)],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert known_hosts.fingerprint(base64) in found
        assert f"line {number}" in found


# --- the way there -------------------------------------------------------------------------------


def asked(table: dict[str, Answers]) -> object:
    def ask(host: str, user: str | None, port: int | None) -> Answers:
        return table.get(host, {})

    return ask


def hosts(route: object) -> list[str]:
    return [hop.where for hop in route.hops]  # type: ignore[attr-defined]


def test_what_pdctl_is_told_goes_before_what_openssh_is_told(tmp_path: Path) -> None:
    table = {
        "h": {
            "hostname": ["10.0.0.1"],
            "user": ["conf"],
            "port": ["2200"],
            "proxyjump": ["a@b:33,c"],
            "connecttimeout": ["7"],
        },
        "b": {"user": ["ignored"]},
        "c": {"user": ["cc"], "hostname": ["c.example"]},
    }
    ask, ssh = asked(table), nobodys_ssh(tmp_path)
    plain = route_of(Login("h"), ssh, ask=ask)  # type: ignore[arg-type]
    assert hosts(plain) == ["a@b:33", "cc@c.example", "conf@10.0.0.1:2200"]
    assert plain.limit == 7
    told = Login("h", user="me", port=22, jump="j@k", connect_timeout=3.0)
    route = route_of(told, ssh, ask=ask)  # type: ignore[arg-type]
    assert hosts(route)[-1] == "me@10.0.0.1"
    assert hosts(route)[0] == "j@k"
    assert len(route.hops) == 2
    assert route.limit == 3
    direct = route_of(Login("h", jump="none"), ssh, ask=ask)  # type: ignore[arg-type]
    assert len(direct.hops) == 1


def test_a_jump_host_may_have_its_own_and_a_circle_is_told(tmp_path: Path) -> None:
    chain: dict[str, Answers] = {"h": {"proxyjump": ["b"]}, "b": {"proxyjump": ["a"]}, "a": {}}
    route = route_of(Login("h", user="u"), nobodys_ssh(tmp_path), ask=asked(chain))  # type: ignore[arg-type]
    assert [hop.host for hop in route.hops] == ["a", "b", "h"]
    circle: dict[str, Answers] = {"a": {"proxyjump": ["b"]}, "b": {"proxyjump": ["a"]}}
    with pytest.raises(UsageError, match="lead to each other"):
        route_of(Login("a"), nobodys_ssh(tmp_path), ask=asked(circle))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("h", ("h", None, None)),
        ("u@h:22", ("h", "u", 22)),
        ("ssh://u@h:22/", ("h", "u", 22)),
        ("u@[::1]:22", ("::1", "u", 22)),
        ("::1", ("::1", None, None)),
        ("me@corp@h", ("h", "me@corp", None)),
    ],
)
def test_jump_hosts_are_read(text: str, parts: tuple[object, ...]) -> None:
    assert split_jump(text) == parts


def test_a_proxy_command_gets_its_tokens() -> None:
    hop = Hop("alias", "10.0.0.1", 2200, "me", proxy="nc -x %% %h:%p %r %n %z 100%")
    assert hop.proxy_line() == "nc -x % 10.0.0.1:2200 me alias %z 100%"


def test_the_answers_of_openssh_are_read() -> None:
    text = "host x\nidentityfile ~/.ssh/a\nidentityfile ~/.ssh/b\nproxyusefdpass no\n"
    assert parse_answers(text)["identityfile"] == ["~/.ssh/a", "~/.ssh/b"]


def test_a_configuration_that_openssh_refuses_is_told(tmp_path: Path) -> None:
    ssh = nobodys_ssh(tmp_path, "Host x\n  NoSuchOption 1\n")
    with pytest.raises(UsageError, match="`ssh -G x` fails") as caught:
        route_of(Login("x"), ssh)
    assert any("nosuchoption" in line.lower() for line in caught.value.detail)


def test_a_configuration_that_hangs_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdctl.targets.ssh.access._ASK_LIMIT_S", 0.3)
    ssh = nobodys_ssh(tmp_path, 'Match exec "sleep 3"\n  Port 1\n')
    with pytest.raises(UsageError, match=r"did not end within 0.3 s"):
        route_of(Login("x"), ssh)


def test_a_name_server_that_is_silent_takes_the_limit_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "pdctl.targets.ssh.connect.socket.getaddrinfo", lambda *a, **b: time.sleep(3) or []
    )
    route = Route((Hop("h", "h", 22, "u"),), limit=0.3)
    with pytest.raises(UnreachableError, match=r"could not be looked up within 0.3 s"):
        Links().open(route)


def test_several_addresses_share_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        kept = [socket.socket() for _ in range(4)]
        for each in kept:  # a full queue lets nobody in any more
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", port))
        address = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", port))
        monkeypatch.setattr(
            "pdctl.targets.ssh.connect.socket.getaddrinfo", lambda *a, **b: [address] * 5
        )
        began = time.monotonic()
        with pytest.raises(UnreachableError, match=r"did not answer within 1 s"):
            Links().open(Route((Hop("h", "h", port, "u"),), limit=1.0))
        assert time.monotonic() - began < 2.5
        for each in kept:
            each.close()


def test_a_configuration_without_ssh_to_read_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdctl.targets.ssh.access.shutil.which", lambda name: None)
    route = route_of(Login("x", user="u"), nobodys_ssh(tmp_path))
    assert route.host.known_hosts == (tmp_path / ".ssh" / "known_hosts",)
    with pytest.raises(UsageError, match="no `ssh` program"):
        route_of(Login("x"), nobodys_ssh(tmp_path, "Host x\n  Port 1\n"))


# --- near and far, without a server --------------------------------------------------------------


class Piped:
    """A far side in a process of this machine."""

    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self.sent: list[bytes] = []
        self._came: queue.Queue[bytes] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        while True:
            more = self.process.stdout.read1(65536)  # type: ignore[attr-defined]
            self._came.put(more)
            if not more:
                return

    def receive(self, size: int) -> bytes:
        try:
            return self._came.get(timeout=0.05)
        except queue.Empty:
            raise TimeoutError from None

    def send(self, content: bytes) -> None:
        assert self.process.stdin is not None
        self.sent.append(content)
        self.process.stdin.write(content)
        self.process.stdin.flush()

    def last_words(self) -> tuple[int | None, str]:
        return self.process.wait(5), ""

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(20)


def far_side() -> Piped:
    return Piped("/bin/sh", "-c", bundle.command_line())


def test_a_near_side_pings_and_a_silent_host_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near, "PING_S", 0.1)
    pipe = far_side()
    side = Near(pipe, "h", limit=20)
    ping = frames.pack(Frame(0, frames.PING, b""))
    deadline = time.monotonic() + 10
    while ping not in pipe.sent:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert not side.lost  # it was answered
    monkeypatch.setattr(near, "SILENCE_S", 0.3)
    pipe.process.send_signal(19)  # SIGSTOP: alive, and silent
    began = time.monotonic()
    with pytest.raises(UnreachableError, match=r"no word for 0.3 s"):
        side.call("alive", ref={"pid": 1, "start_ticks": 1, "boot_id": ""})
    assert time.monotonic() - began < 5
    pipe.process.send_signal(18)
    side.close()


def test_a_call_without_an_answer_ends_at_its_limit() -> None:
    pipe = far_side()
    side = Near(pipe, "h", limit=20)
    command = far.wire_of(far.command_of({"parts": ["sleep", "60"], "env": {}, "cwd": None}))
    with pytest.raises(UnreachableError, match=r"did not answer within 0.2 s"):
        side.call("run", limit=0.2, command=command, timeout=60, stdin=False)
    assert side.lost
    side.close()


def test_a_bug_on_the_far_side_comes_back_as_one_and_harms_nothing() -> None:
    pipe = far_side()
    side = Near(pipe, "h", limit=20)
    with pytest.raises(Exception, match="KeyError") as caught:
        side.call("no such thing")
    assert caught.value.exit_code == 70  # type: ignore[attr-defined]
    assert side.call("exists", path="/") is True
    side.close()


def test_errors_cross_the_wire_whole() -> None:
    error = BadAnswerError("m", where="w", expected="e", hints=["h"], detail=["d"])
    back = error_of(json.loads(json.dumps(far.failure_of(error))))
    assert type(back) is BadAnswerError
    assert back.as_dict() == error.as_dict()
    assert error_of({"class": "os", "message": "x"}).exit_code == 70


def test_what_is_sent_runs_on_python_39_and_needs_nothing_else() -> None:
    for name in bundle.MODULES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        text = Path(spec.origin).read_text()
        tree = ast.parse(text, feature_version=(3, 9))
        for node in ast.walk(tree):
            imported = [node.module] if isinstance(node, ast.ImportFrom) else []
            imported += [each.name for each in node.names] if isinstance(node, ast.Import) else []
            for each in imported:
                top = str(each).partition(".")[0]
                assert top in sys.stdlib_module_names or each in bundle.MODULES, (name, each)
    assert len(bundle.first_words("h")) < 40_000


def test_the_command_line_is_one_word_to_every_shell() -> None:
    inside = re.fullmatch(r"exec /bin/sh -c '([^']*)'", bundle.command_line())
    assert inside
    assert not set(inside[1]) & set("!`\\\n'")  # csh and fish read some of these inside quotes
    assert bundle.command_line("sudo -n") == f"exec sudo -n /bin/sh -c '{inside[1]}'"
