"""EFA devices: sysfs, the PCI bus, the kernel module, the installer's record."""

import re

from pdctl.base.hostfacts import EfaFacts, RdmaDevice
from pdctl.observe.host.raw import items, mapping, maybe_text, text, whole

_INSTALLER = re.compile(r"^#\s*EFA installer version:\s*(\S+)", re.MULTILINE)
_EFA_ID = re.compile(r"0xefa[0-9a-f]", re.IGNORECASE)
_STATE = re.compile(r"^\d+:\s*(\w+)")  # sysfs says `4: ACTIVE`

RDMA_READ = 1 << 0
"""`EFADV_DEVICE_ATTR_CAPS_RDMA_READ`."""
RDMA_WRITE = 1 << 3
"""`EFADV_DEVICE_ATTR_CAPS_RDMA_WRITE`."""
_GENERATION_THAT_READS = 1  # 0xefa1: Nitro v4. Of 0xefa0 (Nitro v3) only p4d and p4de read.


def read_efa(raw: object, caps: object) -> EfaFacts:
    """From the script's `efa` and `efa_caps`."""
    answer = mapping(raw)
    devices = [_device(mapping(each), mapping(caps)) for each in items(answer.get("devices"))]
    installer = _INSTALLER.search(text(answer.get("installed")))
    module = maybe_text(answer.get("module"))
    if module is None and answer.get("loaded") is True:
        module = "unknown"  # a module that does not say its version is loaded all the same
    return EfaFacts(
        devices=tuple(each for each in devices if each.driver == "efa"),
        others=tuple(each for each in devices if each.driver != "efa"),
        on_bus=_on_bus(answer.get("pci")),
        module=module,
        installer=installer[1] if installer else None,
    )


def _device(answer: dict[str, object], caps: dict[str, object]) -> RdmaDevice:
    name = text(answer.get("name"))
    state = _STATE.match(text(answer.get("state")))
    p2p = answer.get("p2p")
    return RdmaDevice(
        name=name,
        driver=maybe_text(answer.get("driver")),
        vendor=maybe_text(answer.get("vendor")),
        device=maybe_text(answer.get("device")),
        state=state[1] if state else None,
        p2p=p2p if isinstance(p2p, str) else None,
        caps=whole(caps.get(name)),
        read_bytes=whole(answer.get("read_bytes")),
        read_answered=whole(answer.get("read_resp_bytes")),
    )


def _on_bus(pci: object) -> int | None:
    if not isinstance(pci, list):
        return None
    ids = [text(mapping(each).get("device")) for each in pci]
    return sum(bool(_EFA_ID.fullmatch(each)) for each in ids)


def reads_by_rdma(device: RdmaDevice) -> bool | None:
    """Whether a device reads by RDMA: by its own word, else by its PCI id; None when neither says.

    EFA devices of the first generation do so on some instance types only.
    """
    if device.caps is not None:
        return bool(device.caps & RDMA_READ)
    if device.device is None or not _EFA_ID.fullmatch(device.device):
        return None
    return True if int(device.device, 16) - 0xEFA0 >= _GENERATION_THAT_READS else None
