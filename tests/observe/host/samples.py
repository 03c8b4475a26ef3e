"""What tools print: recorded here, or quoted from hosts with EFA by others (research notes)."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "host"


def recorded() -> dict[str, Any]:
    """The whole answer of a real machine without EFA."""
    answer: dict[str, Any] = json.loads((DATA / "debian-12-no-efa.json").read_text())
    return answer


def ran(out: str = "", err: str = "", status: int = 0) -> dict[str, Any]:
    """A tool that ended."""
    return {"argv": ["tool"], "status": status, "out": out, "err": err}


FI_VERSION = """\
/opt/amazon/efa/bin/fi_info: 2.6.0amzn1.0
libfabric: 2.6.0amzn1.0
libfabric api: 2.6
"""


def fi_efa(*names: str, version: str = "206.0") -> str:
    """`fi_info -p efa -t FI_EP_RDM` of libfabric 2: each device twice."""
    return "".join(
        f"provider: efa\n    fabric: {fabric}\n    domain: {name}-rdm\n    version: {version}\n"
        "    type: FI_EP_RDM\n    protocol: FI_PROTO_EFA\n"
        for name in names
        for fabric in ("efa-direct", "efa")
    )


FI_EFA_1 = """\
provider: efa
    fabric: efa
    domain: rdmap79s0-rdm
    version: 120.10
    type: FI_EP_RDM
    protocol: FI_PROTO_EFA
provider: efa;ofi_rxd
    fabric: efa
    domain: rdmap80s0-rdm
    version: 120.10
    type: FI_EP_RDM
    protocol: FI_PROTO_RXD
"""
FI_NONE = ran(err="fi_getinfo: -61 (No data available)\n", status=61)

P5EN = tuple(
    f"rdmap{bus}s0"
    for bus in (85, 86, 87, 88, 110, 111, 112, 113, 135, 136, 137, 138, 160, 161, 162, 163)
)

INSTALLED = """\
# EFA installer version: 1.50.0
# Debug packages installed: no
# Packages installed:
libfabric1-aws_2.6.0amzn1.0_amd64 libfabric-aws-bin_2.6.0amzn1.0_amd64
"""


def rdma(name: str, **other: Any) -> dict[str, Any]:
    """A device of p5en as sysfs shows it."""
    return {
        "name": name,
        "driver": "efa",
        "vendor": "0x1d0f",
        "device": "0xefa2",
        "state": "4: ACTIVE",
        "p2p": "NVIDIA",
        "read_bytes": "1048576",
        "read_resp_bytes": "0",
        **other,
    }


SMI_P5EN = "".join(
    f"{index}, NVIDIA H200, 143771, 4, 580.126.16, 00000000:{bus}:00.0\n"
    for index, bus in enumerate(("59", "5A", "72", "73", "8B", "8C", "A4", "A5"))
)
SMI_NO_DRIVER = ran(
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that "
    "the latest NVIDIA driver is installed and running.\n",
    status=9,
)
PROC_OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.126.16  Release Build  (dvs-builder)
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
PROC_CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024
"""

CHRONY = """\
Reference ID    : A9FEA97B (169.254.169.123)
Stratum         : 4
Ref time (UTC)  : Thu Nov 26 10:00:00 2026
System time     : 0.000001501 seconds slow of NTP time
Last offset     : -0.000001632 seconds
RMS offset      : 0.000002360 seconds
Frequency       : 98.959 ppm fast
Leap status     : Normal
"""
TIMEDATECTL = "Timezone=Etc/UTC\nLocalRTC=no\nCanNTP=yes\nNTP=yes\nNTPSynchronized=yes\n"

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max locked memory         8388608              8388608              bytes
"""

NIXL_NO_EFA = """\
I1129 23:52:22.960925    1803 nixl_log.cpp:80] NIXL version: 1.4.1 (git: 1d2a52eb)
E1129 23:52:22.984951    1803 libfabric_common.cpp:68] fi_getinfo failed No data available
E1129 23:52:22.984952    1803 libfabric_topology.cpp:145] No network devices found
E1129 23:52:22.984953    1803 libfabric_topology.cpp:53] Topology discovery failed - no suitable \
network providers found
E1129 23:52:22.984954    1803 backend_plugin.h:102] Failed to create engine: Failed to discover \
system topology - cannot proceed without topology information
E1129 23:52:22.984955    1803 nixl_agent.cpp:404] createBackend: backend creation failed for \
'LIBFABRIC'
"""
