"""What each tool prints, to facts; and the same from a whole recorded machine."""

import errno
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdctl.base.facts import from_json, to_json
from pdctl.base.hostfacts import (
    UNLIMITED,
    BackendFacts,
    Gpu,
    HostFacts,
    HostWant,
    RdmaDevice,
    WantedPeer,
    WantedPort,
)
from pdctl.observe.host.answer import clock_of, facts_of, parts_of
from pdctl.observe.host.clock import read_clock
from pdctl.observe.host.efa import read_efa, reads_by_rdma
from pdctl.observe.host.fabric import read_fabric
from pdctl.observe.host.gpu import read_nvidia
from pdctl.observe.host.memory import read_disks, read_memory
from pdctl.observe.host.network import read_peers, read_ports
from pdctl.observe.host.nixl import read_nixl
from pdctl.observe.host.raw import at_least, numbers, said
from pdctl.observe.host.system import read_limits, read_system
from tests.observe.host import samples
from tests.observe.host.samples import FI_NONE, P5EN, ran, rdma

PORT = WantedPort("prefill-0", "http", "127.0.0.1", 8100)
PEER = WantedPeer("decode-0", "b", "side channel", "10.0.0.2", 5600)
WANT = HostWant(
    backends=("UCX", "LIBFABRIC"), roles=("prefill",), ports=(PORT, PORT), peers=(PEER, PEER)
)


def test_a_recorded_machine() -> None:
    found = facts_of("a", WANT, samples.recorded(), (0.01, 0.02))
    assert found.problems == {}
    assert found.system is not None
    assert (found.system.distribution, found.system.cpus) == ("debian 12", 2)
    assert found.fabric is not None
    assert [(t.path, t.version, t.domains) for t in found.fabric] == [
        ("/usr/bin/fi_info", "1.17.0", ())
    ]
    assert found.efa is not None
    assert (found.efa.devices, found.efa.on_bus, found.efa.module) == ((), 0, None)
    assert found.nvidia is not None
    assert (found.nvidia.on_bus, found.nvidia.error) == (0, "No such file or directory")
    assert found.limits is not None
    assert found.limits.memlock == 8388608
    assert found.memory is not None
    assert (found.memory.total, found.memory.limit) == (24684096 * 1024, None)
    assert found.clock is not None
    assert (found.clock.synchronized, found.clock.source) == (False, "kernel")
    assert found.nixl is not None
    assert (found.nixl.nixl, found.nixl.vllm, found.nixl.ucx) == ("1.5.1", "0.32.0", "1.23.0")
    good, bad = found.nixl.backends
    assert good == BackendFacts("UCX", ok=True)
    assert bad.ok is False
    assert "libcudart.so.12" in bad.error
    assert bad.missing == (
        "libcudart.so.12",
        "libcuda.so.1",
        "libhwloc.so.15",
        "libfabric.so.1 FABRIC_1.10",
    )
    assert [peer.reach for peer in found.peers or ()] == ["refused", "refused"]
    assert from_json(HostFacts, json.loads(json.dumps(to_json(found)))) == found


def test_libfabric_of_the_installer() -> None:
    tool = {
        "path": "/opt/amazon/efa/bin/fi_info",
        "version": ran(samples.FI_VERSION),
        "efa": ran(samples.fi_efa(*P5EN)),
    }
    (found,) = read_fabric([tool])
    assert found.version == "2.6.0amzn1.0"
    assert found.domains is not None
    assert len(found.domains) == 16  # not 32: each device is listed for two fabrics
    assert found.fabrics == ("efa-direct", "efa")


def test_libfabric_one_and_layered_providers() -> None:
    (found,) = read_fabric([{"path": "x", "version": ran(), "efa": ran(samples.FI_EFA_1)}])
    assert found.domains == ("rdmap79s0-rdm", "rdmap80s0-rdm")


def test_no_efa_is_told_from_a_tool_that_does_not_run() -> None:
    (none,) = read_fabric([{"path": "x", "version": ran(samples.FI_VERSION), "efa": FI_NONE}])
    assert (none.domains, none.error) == ((), "fi_getinfo: -61 (No data available)")
    broken = ran(err="error while loading shared libraries: libefa.so.1", status=127)
    (lost,) = read_fabric([{"path": "x", "version": broken, "efa": broken}])
    assert lost.domains is None
    assert "libefa.so.1" in lost.error


def test_efa_devices_and_others() -> None:
    raw = {
        "devices": [rdma("rdmap85s0"), rdma("ibp1s0", driver="mlx5_core", device="0x101e")],
        "pci": [{"device": "0xefa2"}, {"device": "0xefa2"}, {"device": "0xec20"}],
        "module": "3.3.0g",
        "loaded": True,
        "installed": samples.INSTALLED,
    }
    found = read_efa(raw, {"rdmap85s0": 0b11011})
    assert (found.installer, found.module, found.on_bus) == ("1.50.0", "3.3.0g", 2)
    (device,) = found.devices
    assert device == RdmaDevice(
        "rdmap85s0", "efa", "0x1d0f", "0xefa2", "ACTIVE", "NVIDIA", 0b11011, 1048576, 0
    )
    assert [each.name for each in found.others] == ["ibp1s0"]


@pytest.mark.parametrize(
    ("device", "caps", "reads"),
    [
        ("0xefa2", None, True),
        ("0xefa1", None, True),
        ("0xefa0", None, None),  # p4d reads, g5 does not: only the driver knows
        ("0xefa0", 0b11, True),
        ("0xefa0", 0b10, False),
        ("0xefa1", 0, False),
        ("0x101e", None, None),
        (None, None, None),
    ],
)
def test_rdma_read(device: str | None, caps: int | None, reads: bool | None) -> None:
    assert reads_by_rdma(RdmaDevice("x", "efa", "0x1d0f", device, caps=caps)) is reads


def test_gpus() -> None:
    raw = {
        "smi": ran(samples.SMI_P5EN),
        "version": samples.PROC_OPEN,
        "pci": [{"class": "0x030200"}] * 8 + [{"class": "0x068000"}],
        "modules": ["gdrdrv", "nvidia"],
        "fabric_manager": ran("active\n"),
    }
    found = read_nvidia(raw)
    assert len(found.gpus) == found.on_bus == 8
    assert found.switches == 1
    assert found.gpus[0] == Gpu(0, "NVIDIA H200", 143771, 4, "580.126.16", "00000000:59:00.0")
    assert (found.driver, found.open_module) == ("580.126.16", True)
    assert found.modules == ("nvidia", "gdrdrv")
    assert found.fabric_manager == "active"
    assert found.error == ""


def test_a_driver_that_does_not_answer() -> None:
    found = read_nvidia({"smi": samples.SMI_NO_DRIVER, "version": samples.PROC_CLOSED})
    assert found.gpus == ()
    assert "couldn't communicate" in found.error
    assert (found.driver, found.open_module) == ("535.183.01", False)
    hung = {"smi": {"why": "no answer within 10 s", "timeout": True}}
    assert read_nvidia(hung).error == "no answer within 10 s"


def test_a_service_that_does_not_exist_is_not_inactive() -> None:
    found = read_nvidia({"fabric_manager": ran("inactive\n", status=4)})
    assert found.fabric_manager == "not installed"
    assert read_nvidia({"fabric_manager": {"why": "no such program"}}).fabric_manager is None
    assert read_nvidia({}).switches is None
    assert read_nvidia({"fabric_manager": ran("inactive\n", status=3)}).fabric_manager == "inactive"


def test_limits() -> None:
    found = read_limits(
        {
            "memlock": [-1, -1],
            "nofile": [1024, 2**63 - 1],
            "engines": {
                "/s/demo/prefill-0": samples.LIMITS,
                "/s/demo/decode-0": samples.LIMITS.replace("8388608   ", "unlimited "),
                "/s/demo/gone": None,
            },
        }
    )
    assert (found.memlock, found.memlock_hard, found.nofile) == (UNLIMITED, UNLIMITED, 1024)
    assert found.engines == {"prefill-0": 8388608, "decode-0": UNLIMITED}


def test_the_tightest_control_group_counts() -> None:
    groups = [
        {"path": "/a/b", "limit": "max", "used": "5"},
        {"path": "/a", "limit": "2147483648", "used": "7"},
        {"path": "/", "limit": "9223372036854771712", "used": "9"},
    ]
    found = read_memory(
        {"meminfo": "MemTotal: 1024 kB\nHugePages_Total:    5128\n"} | {"cgroup": groups}
    )
    assert (found.total, found.limit, found.used) == (1048576, 2**31, 7)
    assert found.huge_pages == 5128


def test_disks_without_inodes_and_read_only() -> None:
    (found,) = read_disks(
        [
            {
                "path": "/x",
                "at": "/",
                "free": 1,
                "inodes": 0,
                "free_inodes": 0,
                "writable": True,
                "read_only": True,
            }
        ]
    )
    assert found.free_inodes is None
    assert found.writable is False


@pytest.mark.parametrize(
    ("raw", "synchronized", "source"),
    [
        ({"chrony": ran(samples.CHRONY)}, True, "chrony"),
        (
            {"chrony": ran(samples.CHRONY.replace("Normal", "Not synchronised"))},
            False,
            "chrony",
        ),
        (
            {
                "chrony": ran("506 Cannot talk to daemon\n", status=1),
                "timedatectl": ran(samples.TIMEDATECTL),
            },
            True,
            "systemd",
        ),
        ({"timedatectl": ran(samples.TIMEDATECTL.replace("=yes\n", "=no\n"))}, False, "systemd"),
        ({"kernel": {"state": 0, "status": 0x2001}}, True, "kernel"),
        ({"kernel": {"state": 5, "status": 0x40}}, False, "kernel"),
        ({"kernel": {"error": "Operation not permitted"}}, None, None),
    ],
)
def test_clock(raw: object, synchronized: bool | None, source: str | None) -> None:
    found = read_clock(raw, None, None)
    assert (found.synchronized, found.source) == (synchronized, source)


def test_the_offset_has_half_the_round_trip_as_its_error() -> None:
    printed = 'Welcome!\n{"schema_version": 1, "now": 105.0}\n{"schema_version": 1, "parts": {}}\n'
    assert clock_of(printed, 100.0, 102.0) == (4.0, 1.0)
    assert parts_of(printed) == {}
    assert clock_of("Welcome!\n", 100.0, 102.0) is None


def test_ports() -> None:
    held = {"errno": errno.EADDRINUSE, "holders": [{"pid": 12, "name": "python", "mark": "/s/p"}]}
    found = read_ports(
        [
            {"errno": 0},
            held,
            {"errno": errno.EADDRINUSE, "holders": []},
            {"errno": 99, "error": "Cannot assign requested address"},
        ],
        (PORT,) * 5,
    )
    assert [(p.free, p.holder, p.mark, p.error) for p in found] == [
        (True, None, "", ""),
        (False, "pid 12 (python)", "/s/p", ""),
        (False, None, "", ""),
        (None, None, "", "Cannot assign requested address"),
    ]


def test_of_several_holders_the_deployments_own_is_told() -> None:
    """Somebody else may have the same port on another address."""
    holders = [
        {"pid": 7, "name": "nginx", "mark": ""},
        {"pid": 12, "name": "vllm", "mark": "/s/demo/prefill-0"},
    ]
    (found,) = read_ports([{"errno": errno.EADDRINUSE, "holders": holders}], (PORT,))
    assert (found.holder, found.mark) == ("pid 12 (vllm)", "/s/demo/prefill-0")


def test_peers() -> None:
    raw = [{"reach": "open", "seconds": 0.1}, {"reach": "timeout"}, {"reach": "nonsense"}]
    assert [p.reach for p in read_peers(raw, (PEER,) * 3)] == ["open", "timeout", "unreachable"]


def test_nixl_says_why() -> None:
    answer = '{"python": "3.12.3", "nixl": "1.4.1", "ok": false, "error": "NIXL_ERR_BACKEND"}'
    found = read_nixl({"LIBFABRIC": ran("noise\n" + answer, samples.NIXL_NO_EFA)}, ("LIBFABRIC",))
    (backend,) = found.backends
    assert backend.ok is False
    assert backend.error == (
        "fi_getinfo failed No data available; No network devices found; Topology discovery failed "
        "- no suitable network providers found"
    )


def test_a_crash_is_a_failure_and_a_limit_is_not_known() -> None:
    crashed = read_nixl({"UCX": ran(status=-11)}, ("UCX",))
    assert crashed.backends == (BackendFacts("UCX", False, "ended by signal 11"),)
    slow = read_nixl({"UCX": {"why": "no answer within 40 s"}}, ("UCX",))
    assert slow.backends == (BackendFacts("UCX", None, "no answer within 40 s"),)
    assert slow.error == "no answer within 40 s"


def test_parts_that_failed_are_named() -> None:
    parts = {**samples.recorded(), "nvidia": {"error": "it took longer than 16 s"}}
    del parts["disks"]
    found = facts_of("a", WANT, parts, None)
    assert found.nvidia is None
    assert found.problems == {
        "nvidia": "it took longer than 16 s",
        "disks": "the host did not say",
    }
    assert found.memory is not None


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("2.6.0amzn1.0", (2, 6, 0)),
        ("1.21", (1, 21)),
        ("3.3.0g", (3, 3, 0)),
        ("x", None),
        (None, None),
    ],
)
def test_numbers(version: str | None, found: tuple[int, ...] | None) -> None:
    assert numbers(version) == found


def test_at_least() -> None:
    assert at_least("1.21.0amzn1.0", "1.21.0")
    assert at_least("1.21", "1.21.0")
    assert at_least("1.9.0", "1.21.0") is False
    assert at_least("unknown", "1.21.0") is None


def test_said_is_the_last_line() -> None:
    assert said(ran(err="a\nb\n\n", status=1)) == "b"
    assert said(ran(status=3)) == "it ended with status 3"


def _key() -> st.SearchStrategy[str]:
    known = sorted(_keys(samples.recorded()))
    return st.sampled_from(known) | st.text(max_size=5)


def _keys(value: object) -> set[str]:
    if isinstance(value, dict):
        return set(value) | {key for each in value.values() for key in _keys(each)}
    if isinstance(value, list):
        return {key for each in value for key in _keys(each)}
    return set()


GARBAGE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**30), max_value=10**30)
    | st.floats()
    | st.text(max_size=40)
    | st.sampled_from(
        [
            samples.FI_VERSION,
            samples.FI_EFA_1,
            samples.SMI_P5EN,
            samples.CHRONY,
            samples.LIMITS,
            samples.NIXL_NO_EFA,
            samples.INSTALLED,
            "[" * 3000,
            '{"a":' * 3000,
            "9" * 5000,
            "0xefa2",
        ]
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_key(), inner, max_size=5),
    max_leaves=25,
)


@settings(deadline=None)
@given(st.dictionaries(_key(), st.fixed_dictionaries({"ok": GARBAGE}) | GARBAGE))
def test_no_answer_makes_a_parser_raise(parts: dict[str, Any]) -> None:
    found = facts_of("a", WANT, parts, None)
    assert from_json(HostFacts, to_json(found)) == found


@settings(deadline=None)
@given(st.sampled_from(sorted(samples.recorded())), GARBAGE)
def test_no_part_makes_its_parser_raise(name: str, garbage: object) -> None:
    found = facts_of("a", WANT, {**samples.recorded(), name: {"ok": garbage}}, None)
    assert from_json(HostFacts, to_json(found)) == found


@settings(deadline=None)
@given(st.text())
def test_no_output_makes_reading_raise(printed: str) -> None:
    assert parts_of(printed) is None
    assert read_system(printed) == read_system(None)
