"""The script that runs on a host: what one part does costs no other, and limits hold."""

import ast
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.process import MARK_ENV
from pdctl.observe.scripts import look


def _hangs(want: dict[str, Any]) -> None:
    time.sleep(60)


def _crashes(want: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raises(want: dict[str, Any]) -> None:
    raise ValueError("no such thing")


def _talks(want: dict[str, Any]) -> str:
    os.write(1, b"noise that must not reach the answer")
    return "x" * 300_000


def test_each_part_costs_only_itself() -> None:
    begun = time.monotonic()
    found = look.gather(
        {
            "hangs": (_hangs, 0.3),
            "crashes": (_crashes, 20.0),
            "raises": (_raises, 20.0),
            "talks": (_talks, 20.0),
            "fine": (lambda want: want["x"], 20.0),
        },
        {"x": 7},
    )
    assert time.monotonic() - begun < 10
    assert found["fine"] == {"ok": 7}
    assert found["talks"] == {"ok": "x" * 300_000}
    assert found["raises"] == {"error": "ValueError: no such thing"}
    assert found["crashes"] == {"error": "it ended with signal 9"}
    assert found["hangs"] == {"error": "it took longer than 0.3 s"}


def test_a_part_that_cannot_be_ended_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hangs in a driver does not end at SIGKILL; here the signal is kept away."""
    left: list[int] = []
    monkeypatch.setattr(look, "_kill", left.append)
    begun = time.monotonic()
    found = look.gather({"hangs": (_hangs, 0.2), "fine": (lambda want: 1, 20.0)}, {})
    assert time.monotonic() - begun < 5
    assert found == {"hangs": {"error": "it took longer than 0.2 s"}, "fine": {"ok": 1}}
    os.kill(left[0], signal.SIGKILL)
    os.waitpid(left[0], 0)


@pytest.mark.skipif(
    os.getuid() != 0 or not os.path.exists("/usr/bin/python3"),
    reason="becoming another user needs root, and a Python that all may run",
)
def test_any_user_may_look(tmp_path: Path) -> None:
    source = Path(look.__file__).read_text()
    done = subprocess.run(
        [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "/usr/bin/python3",
            "-I",
            "-",
        ],
        input=f"{source}\n\nmain({{'marks': '/', 'paths': [{{'path': '/root/x'}}], "
        "'ports': [{'address': '127.0.0.1', 'port': 80}]})\n",
        capture_output=True,
        text=True,
        timeout=60,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )
    parts = json.loads(done.stdout.splitlines()[-1])["parts"]
    assert {name for name, answer in parts.items() if "ok" not in answer} == set()
    assert parts["disks"]["ok"][0]["writable"] is False


def test_the_scripts_are_for_old_pythons_too() -> None:
    """Amazon Linux 2023 has Python 3.9."""
    folder = Path(look.__file__).parent
    for name in ("look.py", "nixl.py"):
        source = (folder / name).read_text()
        ast.parse(source, feature_version=(3, 9))
        assert "from __future__ import annotations" in source


def test_what_a_part_started_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"

    def starts(want: dict[str, Any]) -> None:
        look.run(["sh", "-c", f"echo $$ > {pid_file}; exec sleep 60"], 50)

    look.gather({"starts": (starts, 1.0)}, {})
    pid = int(pid_file.read_text())
    for _ in range(50):
        stat = look.read(f"/proc/{pid}/stat")
        if stat is None or ") Z" in stat:
            return
        time.sleep(0.1)
    pytest.fail("the tool outlived its part")


def test_a_tool_that_hangs_is_not_waited_for() -> None:
    answer = look.run(["sleep", "60"], 0.2)
    assert answer["timeout"] is True
    assert answer["why"] == "no answer within 0.2 s"


def test_a_tool_that_is_not_there() -> None:
    assert look.run(["/nonexistent"])["why"] == "No such file or directory"


def test_the_installers_fi_info_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("efa", "usr"):
        (tmp_path / folder).mkdir()
        tool = tmp_path / folder / "fi_info"
        tool.write_text(f"#!/bin/sh\necho 'libfabric: 2.6.0{folder}'\n")
        tool.chmod(0o755)
    monkeypatch.setattr(look, "EFA_BIN", str(tmp_path / "efa"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'usr'}:{tmp_path / 'efa'}:/bin")
    found = look.fabric({})
    ours = [each for each in found if each["path"].startswith(str(tmp_path))]
    assert [each["version"]["out"] for each in ours] == [
        "libfabric: 2.6.0efa\n",
        "libfabric: 2.6.0usr\n",
    ]
    assert found[0] == ours[0]


def test_ports_and_their_holders() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wanted = [
            {"address": "127.0.0.1", "port": port},
            {"address": "0.0.0.0", "port": port},
            {"address": "192.0.2.1", "port": port},
            {"address": "no.such.invalid", "port": port},
        ]
        here, everywhere, elsewhere, unknown = look.ports({"ports": wanted})
        reach = look.peers({"peers": wanted[:1]})
    assert here["holders"][0]["pid"] == os.getpid()
    assert everywhere["holders"] == here["holders"]
    assert elsewhere["error"] == "Cannot assign requested address"
    assert unknown["error"] == "the name is not known"
    assert reach[0]["reach"] == "open"
    assert look.ports({"ports": wanted[:1]})[0]["errno"] == 0
    assert look.peers({"peers": wanted[:1]})[0]["reach"] == "refused"
    assert look.peers({"peers": wanted[3:]})[0]["reach"] == "unresolved"


def test_a_peer_that_says_nothing_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "CONNECT_S", 0.3)
    with socket.socket() as server:  # a full queue of connections drops the next one, as a
        server.bind(("127.0.0.1", 0))  # firewall that drops does
        server.listen(0)
        address = server.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        try:
            (answer,) = look.peers({"peers": [{"address": address[0], "port": address[1]}]})
        finally:
            for filler in fillers:
                filler.close()
    assert answer["reach"] == "timeout"


def test_marks_and_limits_of_running_processes(tmp_path: Path) -> None:
    mark = f"{tmp_path}/prefill-0"
    with subprocess.Popen(["sleep", "60"], env={**os.environ, MARK_ENV: mark}) as child:
        try:
            found = look.limits({"marks": f"{tmp_path}/"})["engines"]
        finally:
            child.kill()
    assert list(found) == [mark]
    assert "Max locked memory" in found[mark]
    assert look.limits({"marks": ""})["engines"] == {}


def test_space_of_what_does_not_exist_yet(tmp_path: Path) -> None:
    (answer,) = look.disks({"paths": [{"path": f"{tmp_path}/a/b", "done": f"{tmp_path}"}]})
    assert (answer["at"], answer["done"]) == (str(tmp_path), True)
    assert answer["free"] > 0


def test_control_groups_of_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "CGROUP", str(tmp_path))
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "memory.max").write_text("1024\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2048\n")
    found = look._cgroup_limits("0::/a/b\n")
    assert [(g["path"], g["limit"]) for g in found] == [("/a/b", None), ("/a", "1024"), ("/", None)]
    (old,) = look._cgroup_limits("4:cpu:/x\n9:memory,hugetlb:/\n")
    assert old["limit"] == "2048"


VERBS = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
static int one = 1, two = 2;
static void *devices[] = {&one, &two, 0};
void **ibv_get_device_list(int *count) { *count = 2; return devices; }
const char *ibv_get_device_name(void *d) { return d == &one ? "rdmap85s0" : "ibp1s0"; }
void *ibv_open_device(void *d) { return d; }
int ibv_close_device(void *c) { return 0; }
struct attr { uint64_t comp_mask; uint32_t sq, rq; uint16_t a, b, c; uint8_t r[2]; uint32_t caps,
              size; };
int efadv_query_device(void *c, struct attr *out, uint32_t length) {
    if (c != &one) return 95;
    if (length != sizeof(*out)) return 22;
    memset(out, 0, length); out->caps = 11; out->size = 1 << 30; return 0;
}
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_capabilities_by_the_drivers_library(tmp_path: Path) -> None:
    """The layout is rdma-core's; a stand-in answers, because there is no EFA here."""
    source, library = tmp_path / "verbs.c", tmp_path / "verbs.so"
    source.write_text(VERBS)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    stand_in = ctypes.CDLL(str(library))
    assert look.device_caps(stand_in, stand_in) == {
        "rdmap85s0": 11,
        "ibp1s0": "Operation not supported",
    }


def test_the_script_ends_although_a_part_hangs(tmp_path: Path) -> None:
    """A whole run, on standard input as a host gets it, with a fi_info that never answers."""
    tool = tmp_path / "fi_info"
    tool.write_text("#!/bin/sh\nexec sleep 60\n")
    tool.chmod(0o755)
    source = Path(look.__file__).read_text().replace("TOOL_S = 10.0", "TOOL_S = 0.3")
    done = subprocess.run(
        [sys.executable, "-I", "-"],
        input=f"{source}\n\nmain({{'parts': ['fabric', 'system']}})\n",
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    first, last = (json.loads(line) for line in done.stdout.splitlines())
    assert abs(first["now"] - time.time()) < 30
    assert last["parts"]["system"]["ok"]["machine"]
    runs = [each for each in last["parts"]["fabric"]["ok"] if each["path"] == str(tool)]
    assert runs[0]["version"]["why"] == "no answer within 0.3 s"
