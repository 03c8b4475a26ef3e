"""The deployment of `examples/lab.yaml`, and what happens to it: the table of docs/hosts.md.

Tests run in order and share one deployment, since an engine takes most of a minute to start. What
clients saw is printed with each.
"""

import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.lab.callers import Callers, Told, calling, told
from tests.lab.hosts import LabHost
from tests.lab.site import BASE, MARK, Site, put_clock_ahead, received
from tests.targets.programs import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

CONNECT_S = 6.0
"""`connect_timeout` of the example."""
SIDE_CHANNEL = 5600
SERVER = "vllm.entrypoints.openai.api_server"


@pytest.fixture(autouse=True)
def _tell(site: Site, capfd: pytest.CaptureFixture[str]) -> Iterator[None]:
    """Show the figures, also of tests that pass."""
    yield
    said = [line for line in capfd.readouterr().out.splitlines() if line.startswith("fault: ")]
    with capfd.disabled():
        for line in said:
            print(f"\n  {line}", end="")


def tell(fault: str, seen: Told) -> None:
    """One row of the table."""
    print(f"fault: {fault}: {seen}")


quick = pytest.mark.parametrize("site", ["stand-in"], indirect=True)
"""Where the engine makes no difference."""
mostly_quick = pytest.mark.parametrize(
    "site", ["stand-in", pytest.param("real", marks=pytest.mark.soak)], indirect=True
)
"""Where it makes little."""


# --- before anything runs ------------------------------------------------------------------------


def begun(site: Site) -> list[str]:
    """What an `up` has begun."""
    return [
        *site.left(),
        *(h.name for h in site.lab.hosts if h.path(f"{BASE}/deployments").exists()),
    ]


@quick
def test_a_host_that_is_away_is_named_within_the_limit(site: Site) -> None:
    site.decode.does("ip", "link", "set", "eth0", "down")
    began = time.monotonic()
    try:
        refused = site.operator.types("up", "--yes", expect=69)
        assert time.monotonic() - began < CONNECT_S + 20  # a busy machine takes its time
        assert f"root@{site.decode.address}" in refused.err
        assert "did not answer within 6 s" in refused.err
        asked = ("doctor", "--only", "host.reach", "--json", "--all", "--connect-limit", "3")
        checks = site.operator.types(*asked, expect=1).json["checks"]
    finally:
        site.decode.does("ip", "link", "set", "eth0", "up")
    assert {each["target"]: each["status"] for each in checks} == {
        site.prefill.address: "pass",
        site.decode.address: "fail",
        site.router.address: "pass",
    }
    assert begun(site) == []


@quick
def test_a_key_that_the_host_refuses(site: Site) -> None:
    keys = site.decode.directory / "authorized_keys"
    kept = keys.read_text()
    keys.write_text("")
    try:
        refused = site.operator.types("up", "--yes", expect=77)
    finally:
        keys.write_text(kept)
    assert f"root@{site.decode.address}" in refused.err
    assert str(site.operator.ssh / "id_ed25519") in refused.err
    assert begun(site) == []


@quick
def test_a_host_whose_key_changed(site: Site) -> None:
    known = site.operator.ssh / "known_hosts"
    lines = known.read_text().splitlines()
    changed = f"{site.decode.address} {' '.join(lines[0].split()[1:])}"
    known.write_text("\n".join([lines[0], changed, *lines[2:]]) + "\n")
    try:
        refused = site.operator.types("up", "--yes", expect=77)
    finally:
        known.write_text("\n".join(lines) + "\n")
    assert "the host's key CHANGED" in refused.err
    assert f"ssh-keygen -R {site.decode.address} -f {known}" in refused.err
    assert begun(site) == []


@quick
def test_a_disk_that_is_full(site: Site) -> None:
    base = site.decode.path(BASE)
    site.decode.does("mkdir", "-p", BASE)
    site.decode.does("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", BASE)
    try:
        refused = site.operator.types("up", "--yes", expect=75)
    finally:
        site.decode.does("umount", BASE)
    assert "No space left on device" in refused.err
    assert site.decode.address in refused.err
    assert site.left() == []
    assert list(base.iterdir()) == []


@quick
def test_a_clock_that_is_ten_minutes_ahead(site: Site) -> None:
    if site.no_clock:
        pytest.skip(site.no_clock)
    put_clock_ahead(site.decode)
    asked = ("doctor", "--only", "host.*", "--json", "--all")
    checks = site.operator.tries(*asked).json["checks"]
    clock = {each["target"]: each for each in checks if each["id"] == "host.clock"}
    ahead = clock[site.decode.address]["evidence"]
    assert any("600." in each and "ahead of this one" in each for each in ahead), ahead
    assert not any("ahead" in each for each in clock[site.prefill.address]["evidence"])


# --- coming up -----------------------------------------------------------------------------------


def engines(site: Site) -> dict[str, int]:
    """The engines' servers, by host, as the machine counts."""
    found = {}
    for host in (site.prefill, site.decode):
        for pid in host.pids(f"PDCTL_PROCESS={MARK}", SERVER):
            if psutil.Process(pid).cmdline()[1] == "-m":  # else its supervisor
                found[host.name] = pid
    return found


def test_up_killed_half_way_goes_on(site: Site) -> None:
    first = site.operator.begins("up", "--yes")
    wait_until(lambda: len(engines(site)) == 2, limit=60)
    colleague = site.another("colleague").tries("up", "--yes")
    first.kill()
    first.communicate()
    assert colleague.status == 75
    assert "pdctl up" in colleague.err  # who is at work there
    begun = engines(site)
    again = site.operator.types("up", "--yes")
    assert "nothing to do, because pid" in again.err
    assert engines(site) == begun
    twice = site.operator.types("up", "--yes", "--json").json
    assert twice["changed"] is False
    assert not any(step["changes"] for step in site.operator.asks("plan")["steps"])


@pytest.mark.parametrize("site", ["real"], indirect=True)
def test_verify_pulls_over_the_wire(running: Site) -> None:
    status = running.operator.asks("status")
    assert [(each["role"], each["host"], each["healthy"]) for each in status["roles"]] == [
        ("prefill", running.prefill.address, True),
        ("decode", running.decode.address, True),
        ("router", running.router.address, True),
    ]
    before = received(running.prefill)
    report = running.operator.asks("verify")
    assert report["ok"] is True
    assert report["output_equal"] is True
    assert 1_000_000 < report["bytes_pulled"] < received(running.prefill) - before


@pytest.mark.parametrize("site", ["real"], indirect=True)
def test_a_ttl_is_in_force_at_once_as_decodes_own_handle_says(running: Site) -> None:
    mine = running.edit({})
    said = mine.asks("set-ttl", "300", "--write", "--yes")
    least, most = said["decode"][0]["kept_for"]
    assert least - 0.5 <= 300 <= most + 0.5
    assert [router["ttl"] for router in said["routers"]] == [292]
    assert mine.asks("status")["kv"] == {"decoder_ttl": 300, "router_ttl": 292}
    plan = mine.asks("plan")
    assert [step["id"] for step in plan["steps"] if step["changes"]] == []
    assert mine.asks("set-ttl", "60", "--yes")["routers"][0]["ttl"] == 52
    drift = mine.asks("status")["kv"]
    assert drift["configured"] == {"decoder_ttl": 300, "router_ttl": 292}
    assert mine.asks("set-ttl", "480", "--write", "--yes")["routers"][0]["ttl"] == 472


# --- while serving -------------------------------------------------------------------------------


@contextmanager
def cut(*hosts: LabHost, port: int | None = None) -> Iterator[None]:
    """No packets to these hosts: none at all, or none to one of their ports."""
    if port is None:
        on, off = ["ip", "link", "set", "eth0", "down"], ["ip", "link", "set", "eth0", "up"]
    else:
        rule = ["INPUT", "-p", "tcp", "--dport", str(port), "-j", "DROP"]
        on, off = ["iptables", "-I", *rule], ["iptables", "-D", *rule]
    for host in hosts:
        host.does(*on)
    try:
        yield
    finally:
        for host in hosts:
            host.does(*off)


def serving(callers: Callers, since: float = 0.0) -> Callable[[], bool]:
    """Whether all clients are answered, and reuse, lately."""

    def is_so() -> bool:
        last = callers.since(since)[-4:]
        return len(last) == 4 and all(each.ok for each in last) and any(e.reused for e in last)

    return is_so


@mostly_quick
@pytest.mark.parametrize("role", ["decode", "prefill"])
def test_a_host_that_is_away_while_serving(running: Site, role: str) -> None:
    with calling(running.url) as callers:
        wait_until(serving(callers), limit=30)
        began = time.monotonic()
        with cut(getattr(running, role)):
            time.sleep(8)
        mended = time.monotonic()
        wait_until(serving(callers, mended), limit=60)
    seen = told(callers.since(began), mended)
    tell(f"{role} host unreachable for 8 s", seen)
    # Packets that were lost are sent again, so most only wait.
    assert seen.failed <= 2
    assert set(seen.outcomes) <= {"502", "503"}
    assert callers.wrong(running.decode.address, running.operator.engine_key) == []
    assert running.operator.types("status").status == 0


@mostly_quick
def test_packets_to_the_side_channel_dropped_while_serving(running: Site) -> None:
    with calling(running.url) as callers:
        wait_until(serving(callers), limit=30)
        began = time.monotonic()
        with cut(running.prefill, running.decode, port=SIDE_CHANNEL):
            time.sleep(4)
        seen = told(callers.since(began), began)
    tell("side channel dropped, engines know each other", seen)
    assert seen.failed == 0
    assert seen.reused > 0


def answers(host: LabHost) -> bool:
    """Whether its engine is healthy."""
    try:
        with urllib.request.urlopen(f"http://{host.address}:8100/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@mostly_quick
def test_decode_killed_and_back_with_another_clock_and_no_side_channel(running: Site) -> None:
    """Three faults on one new start of decode, which is what takes its time."""
    decode = running.decode
    if not running.no_clock:
        put_clock_ahead(decode)
    before = running.operator.asks("status")["roles"][1]
    with calling(running.url) as callers:
        wait_until(serving(callers), limit=30)
        began = time.monotonic()
        with cut(running.prefill, decode, port=SIDE_CHANNEL):
            os.kill(engines(running)[decode.name], 9)
            wait_until(lambda: not answers(decode))
            wait_until(lambda: answers(decode), limit=180)  # its supervisor starts it again
            there = time.monotonic()
            wait_until(lambda: any(each.ok for each in callers.since(there)), limit=60)
            known = time.monotonic()  # the router has seen it, too
            time.sleep(8)
        opened = time.monotonic()
        wait_until(serving(callers, opened), limit=90)
    dead = told([each for each in callers.since(began) if each.ended < there], there)
    closed = told([e for e in callers.since(known) if e.began < opened], there)
    after = told([e for e in callers.since(opened) if e.began > opened], opened)
    tell("decode killed", dead)
    tell("side channel dropped, decode new", closed)
    tell("side channel open again", after)
    assert set(dead.outcomes) <= {"502", "503", "500"}
    assert closed.failed == 0
    assert after.failed == 0
    assert after.reuse_s is not None
    assert "handles to" in running.router.path(f"{MARK}logs/router-0.log").read_text()
    assert callers.wrong(decode.address, running.operator.engine_key) == []
    again = running.operator.asks("status")["roles"][1]
    assert again["restarts"] == before["restarts"] + 1
    assert again["engine_id"] != before["engine_id"]
    assert running.operator.asks("verify")["ok"] is True
