"""What each check says of a host, from what its tools print: healthy, and broken one by one."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from pdctl.base.facts import ServingFacts
from pdctl.base.hostfacts import HostFacts
from pdctl.doctor.rows.host import CHECKS
from pdctl.doctor.table import Status, run_checks
from tests.doctor.hosts import (
    LAPTOP_WANT,
    MARKS,
    P5EN_WANT,
    laptop,
    p5en,
    p5en_parts,
    pair,
    verdict,
)
from tests.observe.host import samples
from tests.observe.host.samples import FI_NONE, P5EN, ran, rdma

Make = Callable[[], HostFacts]


def test_a_healthy_p5en_pair_has_nothing_to_say() -> None:
    facts = pair(p5en(), replace(p5en(), name="b"))
    findings = run_checks(facts, CHECKS)
    assert [(f.id, f.evidence) for f in findings if f.status in ("fail", "warn")] == []
    skips = {f.id for f in findings if f.status == "skip"}
    assert skips == set()


def test_a_laptop_is_not_asked_for_efa() -> None:
    findings = run_checks(pair(laptop()), CHECKS)
    # Nothing here runs, so the recorded refusals of peers are not asked for either.
    assert [(f.id, f.evidence) for f in findings if f.status in ("fail", "warn")] == []
    said = {f.id: f.evidence[0] for f in findings if f.status == "skip"}
    for id in ("host.efa.module", "host.efa.devices", "host.libfabric.version", "host.memlock"):
        assert said[id] == "this target does not use EFA: backends UCX"
    assert said["host.gpu.driver"] == "the engines of this host compute on the CPU"


def test_a_dead_host_is_one_finding() -> None:
    dead = HostFacts("a", error="no route to host", want=P5EN_WANT)
    findings = run_checks(pair(dead), CHECKS)
    assert [f.id for f in findings if f.status in ("fail", "warn")] == ["host.reach"]


def test_a_host_that_nobody_looked_at_is_skipped() -> None:
    findings = run_checks(pair(HostFacts("http://x:1")), CHECKS)
    assert {f.status for f in findings if f.id != "host.reach"} == {"skip"}


def test_a_part_that_hung_costs_its_own_checks_only() -> None:
    host = replace(p5en(), nvidia=None, problems={"nvidia": "it took longer than 16 s"})
    findings = run_checks(pair(host), CHECKS)
    skipped = {f.id: f.evidence[0] for f in findings if f.status == "skip"}
    assert skipped["host.gpu.driver"] == "it took longer than 16 s"
    assert not any(f.status in ("fail", "warn") for f in findings)
    assert next(f for f in findings if f.id == "host.efa.devices").status == "pass"


def _fi(version: str, efa: object = None) -> list[dict[str, object]]:
    return [
        {
            "path": "/usr/bin/fi_info",
            "version": ran(f"libfabric: {version}\n"),
            "efa": efa or ran(samples.fi_efa(*P5EN)),
        }
    ]


def _nixl(error: str = "", log: str = "", **more: object) -> dict[str, object]:
    import json

    said = {
        "python": "3.12.3",
        "vllm": "0.33.0",
        "nixl": "1.5.0",
        "ok": not error,
        "error": error,
        **more,
    }
    return {"LIBFABRIC": ran(json.dumps(said), log)}


TWO_LIBFABRICS = [*p5en_parts()["fabric"]["ok"], *_fi("1.17.0")]
UCX_GPU = replace(P5EN_WANT, backends=("UCX",))
RUNNING = {"engines": {MARKS + "prefill-0": samples.LIMITS}}

BROKEN: list[tuple[str, Make, Status, str]] = [
    ("host.reach", lambda: HostFacts("a", error="no route to host"), "fail", "no route to host"),
    (
        "host.system",
        lambda: p5en(system={"os_release": "ID=debian\nVERSION_ID=12\n"}),
        "warn",
        "ubuntu 22.04 or ubuntu 24.04",
    ),
    (
        "host.disk",
        lambda: p5en(disks=[{"at": "/opt", "free": 2**30, "done": False}]),
        "fail",
        "engines: 1.0 GiB free at /opt, needed 20.0 GiB",
    ),
    (
        "host.disk",
        lambda: p5en(disks=[{"at": "/opt", "free": 2**40, "inodes": 9, "free_inodes": 5}]),
        "warn",
        "only 5 files may still be made",
    ),
    (
        "host.disk",
        lambda: p5en(disks=[{"at": "/opt", "free": 2**40, "writable": False}]),
        "fail",
        "/opt cannot be written by ubuntu",
    ),
    (
        "host.disk",
        lambda: p5en(disks=[{"path": "/opt", "at": "/opt", "error": "Stale file handle"}]),
        "warn",
        "Stale file handle",
    ),
    (
        "host.disk",
        lambda: p5en(disks=[{"path": "/opt", "at": "/opt", "free": 2**40, "error": "odd"}]),
        "warn",
        "odd",
    ),
    (
        "host.memory",
        lambda: laptop(memory={"cgroup": [{"limit": "2147483648", "used": "1"}]}),
        "fail",
        "2.0 GiB in the control group",
    ),
    (
        "host.memory",
        lambda: laptop(memory={"meminfo": "MemTotal: 16000000 kB\nMemAvailable: 1000000 kB\n"}),
        "warn",
        "expected 5.0 GiB: 2 engines with 2.0 GiB of KV cache",
    ),
    (
        "host.shm",
        lambda: p5en(memory={"shm": {"total": 64 * 2**20, "free": 64 * 2**20}}),
        "fail",
        "/dev/shm has 0.1 GiB",
    ),
    (
        "host.clock",
        lambda: p5en(clock={"chrony": ran(samples.CHRONY.replace("Normal", "Not synchronised"))}),
        "warn",
        "not synchronized, by chrony's word",
    ),
    ("host.clock", lambda: p5en(offset=(-3.0, 0.2)), "warn", "3.00 s behind this one"),
    (
        "host.ports",
        lambda: p5en(ports=[{"errno": 98, "holders": [{"pid": 7, "name": "nginx", "mark": ""}]}]),
        "fail",
        "10.0.0.1:8100 (http of prefill-0) is held by pid 7 (nginx)",
    ),
    (
        "host.ports",
        lambda: p5en(
            ports=[
                {"errno": 98, "holders": [{"pid": 7, "name": "python", "mark": MARKS + "decode-0"}]}
            ]
        ),
        "fail",
        "is held by pid 7 (python)",
    ),
    (
        "host.ports",
        lambda: p5en(ports=[{"errno": 99, "error": "Cannot assign requested address"}]),
        "fail",
        "cannot be listened on: Cannot assign requested address",
    ),
    (
        "host.ports",
        lambda: p5en(ports=[{"errno": 98, "holders": []}]),
        "warn",
        "held by a process that this user cannot see",
    ),
    (
        "host.peers",
        lambda: p5en(peers=[{"reach": "refused"}]),
        "fail",
        "10.0.0.2:5600 (side channel of decode-0): nobody listens there",
    ),
    ("host.peers", lambda: p5en(peers=[{"reach": "timeout"}]), "fail", "packets are dropped"),
    (
        "host.peers",
        lambda: p5en(peers=[{"reach": "unreachable", "error": "No route to host"}]),
        "fail",
        "there is no way to it: No route to host",
    ),
    ("host.memlock", lambda: p5en(limits={"memlock": [8388608, 8388608]}), "fail", "8192 KiB"),
    ("host.memlock", lambda: p5en(limits=RUNNING), "fail", "prefill-0 may lock 8192 KiB"),
    (
        "host.huge_pages",
        lambda: p5en(memory={"meminfo": "HugePages_Total: 0\nHugepagesize: 2048 kB\n"}),
        "warn",
        "0 huge pages of 2048 KiB, AWS's own EFA nodes have 5128",
    ),
    (
        "host.efa.module",
        lambda: p5en(efa={"devices": [], "module": None, "loaded": False}),
        "fail",
        "16 EFA devices are on the PCI bus, the module is not loaded",
    ),
    (
        "host.efa.module",
        lambda: p5en(efa={"devices": [], "pci": [], "module": "3.3.0g"}),
        "fail",
        "the PCI bus has no EFA device, expected 16",
    ),
    ("host.efa.devices", lambda: p5en(efa={"devices": []}), "fail", "0 EFA devices, expected 16"),
    (
        "host.efa.devices",
        lambda: p5en(efa={"devices": [rdma(P5EN[0])]}),
        "warn",
        "1 EFA devices, expected 16 on p5en.48xlarge",
    ),
    (
        "host.efa.devices",
        lambda: p5en(efa={"devices": [rdma(name, state="1: DOWN") for name in P5EN]}),
        "fail",
        "rdmap85s0: port is DOWN",
    ),
    (
        "host.efa.rdma_read",
        lambda: p5en(efa_caps={P5EN[3]: 0}),
        "fail",
        "rdmap88s0: the device does not read by RDMA",
    ),
    (
        "host.efa.rdma_read",
        lambda: p5en(
            replace(P5EN_WANT, instance_type="g5.48xlarge"),
            efa={"devices": [rdma("rdmap1s0", device="0xefa0")]},
        ),
        "fail",
        "g5.48xlarge",
    ),
    ("host.efa.installer", lambda: p5en(efa={"installed": None}), "warn", "was not used"),
    (
        "host.efa.installer",
        lambda: p5en(efa={"installed": "# EFA installer version: 1.29.1\n"}),
        "warn",
        "EFA installer 1.29.1, expected 1.32.0 or newer",
    ),
    (
        "host.libfabric.version",
        lambda: p5en(fabric=[], nixl=_nixl("NIXL_ERR_NOT_FOUND")),
        "fail",
        "there is no fi_info",
    ),
    # The distribution's own, as Debian 12 has it.
    (
        "host.libfabric.version",
        lambda: p5en(fabric=samples.recorded()["fabric"]["ok"]),
        "fail",
        "/usr/bin/fi_info: libfabric 1.17.0, expected 1.21.0 or newer",
    ),
    (
        "host.libfabric.version",
        lambda: p5en(fabric=TWO_LIBFABRICS, nixl=_nixl("NIXL_ERR_NOT_FOUND")),
        "warn",
        "libfabric 1.17.0",
    ),
    (
        "host.libfabric.version",
        lambda: p5en(
            fabric=[{"path": "/x/fi_info", "version": ran(err="libefa.so.1", status=127)}]
        ),
        "fail",
        "libefa.so.1",
    ),
    (
        "host.libfabric.efa",
        lambda: p5en(fabric=_fi("2.6.0", FI_NONE)),
        "fail",
        "offers nothing: fi_getinfo: -61 (No data available), expected 16 devices",
    ),
    (
        "host.libfabric.efa",
        lambda: p5en(fabric=_fi("2.6.0", ran(samples.fi_efa(*P5EN[:8])))),
        "warn",
        "offers 8 devices, expected 16",
    ),
    (
        "host.libfabric.efa",
        lambda: p5en(fabric=_fi("2.6.0", {"why": "no answer within 10 s"})),
        "fail",
        "does not run: no answer within 10 s",
    ),
    ("host.efa.env", lambda: p5en(replace(P5EN_WANT, engine_env={})), "fail", "not set"),
    (
        "host.efa.env",
        lambda: p5en(
            replace(P5EN_WANT, engine_env={"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "0"})
        ),
        "fail",
        "FI_EFA_USE_DEVICE_RDMA=0",
    ),
    (
        "host.efa.env",
        lambda: p5en(
            replace(P5EN_WANT, engine_env={"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1"})
        ),
        "warn",
        "FI_EFA_USE_DEVICE_RDMA=1",
    ),
    ("host.gpu.driver", lambda: p5en(nvidia={"smi": samples.SMI_NO_DRIVER}), "fail", "NVIDIA-SMI"),
    (
        "host.gpu.driver",
        lambda: p5en(nvidia={"smi": {"why": "no answer within 10 s"}}),
        "fail",
        "no answer within 10 s",
    ),
    (
        "host.gpu.driver",
        lambda: p5en(
            nvidia={
                "version": samples.PROC_CLOSED,
                "smi": ran(samples.SMI_P5EN.replace("580.126.16", "535.183.01")),
            }
        ),
        "fail",
        "driver 535.183.01, expected 580 or newer: torch was built for CUDA 13.0",
    ),
    (
        "host.gpu.driver",
        lambda: p5en(nvidia={"smi": ran(), "pci": []}),
        "fail",
        "the PCI bus has no NVIDIA GPU",
    ),
    (
        "host.gpu.count",
        lambda: p5en(nvidia={"smi": ran(samples.SMI_P5EN.partition("7, ")[0])}),
        "fail",
        "lists 7 GPUs (NVIDIA H200), the PCI bus has 8",
    ),
    (
        "host.gpu.count",
        lambda: p5en(replace(P5EN_WANT, gpus=16)),
        "fail",
        "8 GPUs (NVIDIA H200), expected at least 16",
    ),
    (
        "host.gpu.memory",
        lambda: p5en(nvidia={"smi": ran(samples.SMI_P5EN.replace("143771, 4", "143771, 90000"))}),
        "warn",
        "GPU 0: 90000 of 143771 MiB are in use",
    ),
    (
        "host.gpu.fabric_manager",
        lambda: p5en(nvidia={"fabric_manager": ran("failed\n", status=3)}),
        "fail",
        "nvidia-fabricmanager is failed",
    ),
    (
        "host.gpu.fabric_manager",
        lambda: p5en(nvidia={"fabric_manager": ran("inactive\n", status=4)}),
        "fail",
        "nvidia-fabricmanager is not installed, and the PCI bus has 4 NVSwitches",
    ),
    (
        "host.gpu.fabric_manager",  # their switches are no devices of the host's
        lambda: p5en(
            nvidia={
                "fabric_manager": ran("failed\n", status=3),
                "pci": [{"class": "0x030200"}] * 8,
                "smi": ran(samples.SMI_P5EN.replace("H200", "B200")),
            }
        ),
        "fail",
        "nvidia-fabricmanager is failed",
    ),
    (
        "host.gpu.direct",  # libfabric takes DMA-BUF first, which needs no such module
        lambda: p5en(
            efa={"devices": [rdma(name, p2p="") for name in P5EN]}, nvidia={"modules": ["nvidia"]}
        ),
        "warn",
        "DMA-BUF is left",
    ),
    (
        "host.gpu.direct",
        lambda: p5en(
            efa={"devices": [rdma(name, p2p="") for name in P5EN]},
            nvidia={"version": samples.PROC_CLOSED, "modules": ["nvidia"]},
        ),
        "fail",
        "closed module",
    ),
    (
        "host.gpu.direct",
        lambda: p5en(
            efa={"devices": [rdma(name, p2p="") for name in P5EN], "module": "2.15.0"},
            nvidia={"modules": ["nvidia"]},
        ),
        "fail",
        "module efa 2.15.0 with driver 580.126.16, expected 2.17.3 or newer",
    ),
    (
        "host.gpu.direct",
        lambda: p5en(
            efa={"devices": [rdma(name, p2p=None) for name in P5EN]},
            nvidia={"version": samples.PROC_CLOSED},
        ),
        "warn",
        "closed module",
    ),
    (
        "host.nixl.version",
        lambda: p5en(nixl=_nixl(nixl="1.5.1")),
        "fail",
        "LIBFABRIC: ",
    ),
    (
        "host.nixl.backend",
        lambda: p5en(nixl=_nixl("NIXL_ERR_BACKEND", samples.NIXL_NO_EFA)),
        "fail",
        "No network devices found",
    ),
    (
        "host.nixl.backend",
        lambda: p5en(nixl={"LIBFABRIC": samples.recorded()["nixl"]["ok"]["LIBFABRIC"]}),
        "fail",
        "its plugin does not find: libcudart.so.12, libcuda.so.1, libhwloc.so.15, "
        "libfabric.so.1 FABRIC_1.10",
    ),
    (
        "host.nixl.backend",
        lambda: p5en(nixl=_nixl("ModuleNotFoundError: No module named 'nixl'")),
        "fail",
        "No module named 'nixl'",
    ),
    ("host.nixl.backend", lambda: p5en(nixl={"LIBFABRIC": ran(status=-11)}), "fail", "signal 11"),
]


def test_a_fabric_manager_without_a_fabric_has_nothing_to_do() -> None:
    """As on a g6e with AWS's image, which brings the service: it ends with NOTHING_TO_DO."""
    host = p5en(
        nvidia={"fabric_manager": ran("failed\n", status=3), "pci": [{"class": "0x030200"}] * 8}
    )
    found = verdict("host.gpu.fabric_manager", host)
    assert (found.status, found.evidence) == ("skip", ("the PCI bus has no NVSwitch",))


@pytest.mark.parametrize(("check", "make", "status", "evidence"), BROKEN)
def test_broken(check: str, make: Make, status: Status, evidence: str) -> None:
    host = make()
    found = verdict(check, host)
    assert (found.status, evidence in " | ".join(found.evidence)) == (status, True), found
    # And it is found in a whole run, unless what it stands on explains it already.
    run = {f.id: f for f in run_checks(pair(host), CHECKS)}
    whole = run[check]
    needs = [f for id in _needs(check) if (f := run[id]).status in ("fail", "skip")]
    assert whole.status == ("skip" if needs else status)
    if not needs:
        assert whole.fix is not None
        assert whole.fix.text


def _needs(check: str) -> tuple[str, ...]:
    return next(each for each in CHECKS if each.id == check).needs


def test_every_check_is_broken_once() -> None:
    other = {"host.software.equal"}  # of a pair; below
    assert {check for check, _, _, _ in BROKEN} | other == {check.id for check in CHECKS}


def test_what_nixl_loaded_counts_more_than_what_lies_around() -> None:
    """A container without fi_info, and a host with the distribution's libfabric besides."""
    for tools in ([], TWO_LIBFABRICS):
        found = verdict("host.libfabric.version", p5en(fabric=tools))
        assert found.status == "pass"
        assert found.evidence[-1] == (
            "NIXL is loaded with /opt/amazon/efa/lib/libfabric.so.1.32.0 (2.6)"
        )


def test_fewer_devices_degrade_and_none_blocks() -> None:
    few = {f.id: f for f in run_checks(pair(p5en(efa={"devices": [rdma(P5EN[0])]})), CHECKS)}
    assert few["host.efa.devices"].severity == "degrade"
    none = {f.id: f for f in run_checks(pair(p5en(efa={"devices": []})), CHECKS)}
    assert none["host.efa.devices"].severity == "block"


@pytest.mark.parametrize(
    ("smi", "text"),
    [
        (samples.SMI_NO_DRIVER, "install the driver"),
        ({"why": "no answer within 10 s"}, "the driver hangs"),
        (
            ran("Failed to initialize NVML: Driver/library version mismatch\n", status=18),
            "the driver was updated",
        ),
    ],
)
def test_what_to_do_about_a_driver(smi: object, text: str) -> None:
    run = {f.id: f for f in run_checks(pair(p5en(nvidia={"smi": smi})), CHECKS)}
    fix = run["host.gpu.driver"].fix
    assert fix is not None
    assert fix.text.startswith(text)


def test_a_host_without_python_is_told_how_to_get_one() -> None:
    host = HostFacts(
        "a", error="there is no python3 of 3.9 or newer on it, with which it is looked at"
    )
    found = verdict("host.reach", host)
    assert found.fix is not None
    assert found.fix.commands == ("sudo apt-get install -y python3",)


def test_own_ports_are_not_in_the_way() -> None:
    held = [{"errno": 98, "holders": [{"pid": 7, "name": "vllm", "mark": MARKS + "prefill-0"}]}]
    found = verdict("host.ports", p5en(ports=held))
    assert found.status == "pass"
    assert found.evidence == ("10.0.0.1:8100 (http of prefill-0) is held by prefill-0 itself",)


def test_a_dead_engine_is_not_also_a_dead_port() -> None:
    dead = ServingFacts("decode-0", "decode", "b", "http://b", error="refused")
    host = p5en(peers=[{"reach": "refused"}])
    assert verdict("host.peers", host, engines=(dead,)).status == "skip"
    alive = replace(dead, error=None)
    assert verdict("host.peers", host, engines=(alive,)).status == "fail"


def test_memory_of_engines_that_run_is_not_missed() -> None:
    low = {"meminfo": "MemTotal: 16000000 kB\nMemAvailable: 1000000 kB\n"}
    marks = {LAPTOP_WANT.marks + "prefill-0": samples.LIMITS}
    assert verdict("host.memory", laptop(memory=low, limits={"engines": marks})).status == "pass"


def test_gpu_memory_of_own_engines_is_not_somebody_elses() -> None:
    busy = {"smi": ran(samples.SMI_P5EN.replace("143771, 4", "143771, 90000"))}
    assert verdict("host.gpu.memory", p5en(nvidia=busy, limits=RUNNING)).status == "skip"


def test_units_bring_their_own_limit() -> None:
    host = p5en(replace(P5EN_WANT, units=True), limits={"memlock": [65536, 65536]})
    assert verdict("host.memlock", host).status == "pass"


def test_an_engine_that_is_not_installed_yet_is_no_fault() -> None:
    host = p5en(nixl={"LIBFABRIC": {"why": "No such file or directory"}})
    found = verdict("host.nixl.backend", host)
    assert found.status == "skip"
    assert "no engine is installed yet" in found.evidence[0]


def test_a_slow_load_is_not_known_rather_than_wrong() -> None:
    host = p5en(nixl={"LIBFABRIC": {"why": "no answer within 40 s"}})
    assert verdict("host.nixl.backend", host).status == "skip"


@pytest.mark.parametrize(
    ("missing", "text", "command"),
    [
        (["libhwloc.so.15"], "install hwloc", "sudo apt-get install -y libhwloc15"),
        (["libfabric.so.1"], "install the EFA software", "curl -O https://efa-installer"),
        (["libfabric.so.1 FABRIC_1.10"], 'pin `engine.nixl: "1.5.0"`', None),
        (["libcuda.so.1"], "NVIDIA driver", None),
        ([], "see what the loader says", "NIXL_LOG_LEVEL=TRACE"),
    ],
)
def test_the_fix_follows_what_is_missing(
    missing: list[str], text: str, command: str | None
) -> None:
    found = verdict("host.nixl.backend", p5en(nixl=_nixl("NIXL_ERR_NOT_FOUND", missing=missing)))
    assert found.fix is not None
    assert text in found.fix.text
    if command is not None:
        assert any(each.startswith(command) for each in found.fix.commands)


def test_software_that_differs() -> None:
    good = replace(p5en(), name="b")
    assert verdict("host.software.equal", p5en(), good).status == "pass"
    assert verdict("host.software.equal", p5en()).status == "skip"
    older = replace(p5en(fabric=_fi("1.22.0")), name="b")
    found = verdict("host.software.equal", p5en(), older)
    assert found.status == "warn"
    assert found.evidence == ("libfabric differs (a: 2.6.0amzn1.0, b: 1.22.0)",)
    other = replace(p5en(nixl=_nixl(nixl="1.4.1")), name="b")
    assert verdict("host.software.equal", p5en(), other).status == "fail"


def test_p4d_reads_by_its_type_alone() -> None:
    want = replace(P5EN_WANT, instance_type="p4d.24xlarge", efa=4)
    host = p5en(want, efa={"devices": [rdma("rdmap1s0", device="0xefa0")]}, efa_caps={})
    host = replace(
        host,
        efa=replace(
            host.efa,
            devices=tuple(  # type: ignore[type-var]
                replace(d, caps=None)
                for d in host.efa.devices  # type: ignore[union-attr]
            ),
        ),
    )
    assert verdict("host.efa.rdma_read", host).status == "pass"
    unknown = replace(host, want=replace(want, instance_type=None))
    assert verdict("host.efa.rdma_read", unknown).status == "skip"


def test_ucx_over_gpus_is_not_asked_for_efa() -> None:
    findings = run_checks(pair(p5en(UCX_GPU, nixl={"UCX": ran('{"ok": true}')})), CHECKS)
    assert {f.status for f in findings if f.id.startswith("host.efa.")} == {"skip"}
    assert next(f for f in findings if f.id == "host.gpu.count").status == "pass"
