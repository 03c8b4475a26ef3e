"""Hosts made of what tools print: a healthy p5en, a healthy laptop, and changes to them."""

import copy
from dataclasses import replace
from typing import Any

from pdctl.base.facts import PairFacts
from pdctl.base.hostfacts import HostFacts, HostWant, WantedPath, WantedPeer, WantedPort
from pdctl.doctor.rows.host import CHECKS
from pdctl.doctor.table import Verdict
from pdctl.observe.host.answer import facts_of
from tests.observe.host import samples
from tests.observe.host.samples import P5EN, ran, rdma

MARKS = "/opt/pdctl/deployments/demo/"
PEER = WantedPeer("decode-0", "b", "side channel", "10.0.0.2", 5600)

P5EN_WANT = HostWant(
    target="ec2",
    roles=("prefill",),
    backends=("LIBFABRIC",),
    on_cpu=False,
    gpus=8,
    instance_type="p5en.48xlarge",
    efa=16,
    engine_python="/opt/pdctl/engines/x/venv/bin/python",
    engine_env={"FI_PROVIDER": "efa"},
    tensor_parallel=8,
    marks=MARKS,
    paths=(WantedPath("engines", "/opt/pdctl/engines/x", 20 * 2**30, "/x/COMPLETE"),),
    ports=(WantedPort("prefill-0", "http", "10.0.0.1", 8100),),
    peers=(PEER,),
)

_NIXL_OK = (
    '{"python": "3.12.3", "vllm": "0.33.0", "torch": "2.13.0+cu130", "cuda": "13.0", "nixl": '
    '"1.5.0", "ok": true, "libfabric": "/opt/amazon/efa/lib/libfabric.so.1.32.0", '
    '"libfabric_version": "2.6"}'
)


def p5en_parts() -> dict[str, Any]:
    """What the script would print on a healthy p5en.48xlarge (from samples; never run on one)."""
    parts = {
        "system": {
            "os_release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n',
            "kernel": "6.14.0-1010-aws",
            "machine": "x86_64",
            "python": "3.12.3",
            "cpus": 192,
            "user": "ubuntu",
        },
        "fabric": [
            {
                "path": "/opt/amazon/efa/bin/fi_info",
                "version": ran(samples.FI_VERSION),
                "efa": ran(samples.fi_efa(*P5EN)),
            }
        ],
        "efa": {
            "devices": [rdma(name) for name in P5EN],
            "pci": [{"device": "0xefa2"} for _ in P5EN],
            "module": "3.3.0g",
            "loaded": True,
            "installed": samples.INSTALLED,
        },
        "efa_caps": dict.fromkeys(P5EN, 27),
        "nvidia": {
            "smi": ran(samples.SMI_P5EN),
            "version": samples.PROC_OPEN,
            "pci": [{"class": "0x030200"}] * 8 + [{"class": "0x068000"}] * 4,
            "modules": ["nvidia", "efa_nv_peermem"],
            "fabric_manager": ran("active\n"),
        },
        "limits": {"memlock": [-1, -1], "nofile": [1048576, 1048576], "engines": {}},
        "memory": {
            "meminfo": "MemTotal: 2113929216 kB\nMemAvailable: 2000000000 kB\n"
            "HugePages_Total: 5128\nHugePages_Free: 5128\nHugepagesize: 2048 kB\n",
            "cgroup": [{"path": "/", "limit": "max", "used": None}],
            "shm": {"at": "/dev/shm", "free": 10**12, "total": 10**12},
        },
        "disks": [
            {
                "path": "/opt/pdctl/engines/x",
                "at": "/opt",
                "free": 400 * 2**30,
                "total": 500 * 2**30,
                "inodes": 10**7,
                "free_inodes": 10**6,
                "writable": True,
                "read_only": False,
                "done": False,
            }
        ],
        "clock": {"chrony": ran(samples.CHRONY)},
        "ports": [{"errno": 0, "error": ""}],
        "peers": [{"reach": "open", "seconds": 0.001}],
        "nixl": {"LIBFABRIC": ran(_NIXL_OK)},
    }
    return {name: {"ok": value} for name, value in parts.items()}


def laptop_parts() -> dict[str, Any]:
    """The recorded machine without EFA; its clock is nobody's, its ports are free."""
    return samples.recorded()


LAPTOP_WANT = HostWant(
    target="local",
    roles=("prefill", "decode", "router"),
    engine_python="/opt/engine/bin/python",
    engine_env={"UCX_TLS": "tcp,self,sm"},
    kv_bytes=2**31,
    marks="/home/user/.local/state/pdctl/demo/",
    paths=(
        WantedPath("engines", "/home/user/.cache/pdctl/engines/x", 5 * 10**9, "/x/COMPLETE"),
        WantedPath("state and logs", "/home/user/.local/state/pdctl/demo", 2**30),
    ),
    ports=(WantedPort("prefill-0", "http", "127.0.0.1", 8100),),
)


def p5en(want: HostWant = P5EN_WANT, **changes: Any) -> HostFacts:
    """A p5en with parts changed: `efa={"module": None}` changes inside a part."""
    return _host("a", want, p5en_parts(), changes)


def laptop(want: HostWant = LAPTOP_WANT, **changes: Any) -> HostFacts:
    """The recorded machine with parts changed."""
    return _host("localhost", want, laptop_parts(), changes)


def _host(name: str, want: HostWant, parts: dict[str, Any], changes: dict[str, Any]) -> HostFacts:
    parts = copy.deepcopy(parts)
    clock = changes.pop("offset", (0.01, 0.02))
    for part, change in changes.items():
        value = parts[part]["ok"]
        if isinstance(change, dict) and isinstance(value, dict):
            value.update(change)
        else:
            parts[part] = {"ok": change}
    return facts_of(name, want, parts, clock)


def pair(*hosts: HostFacts, **other: Any) -> PairFacts:
    """A deployment of these hosts."""
    return replace(PairFacts(name="demo", taken_at=0.0, hosts=hosts), **other)


def verdict(check: str, *hosts: HostFacts, **other: Any) -> Verdict:
    """What one check says of the first of these hosts."""
    row = next(each for each in CHECKS if each.id == check)
    return row.judge(pair(*hosts, **other), hosts[0].name)
