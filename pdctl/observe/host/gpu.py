"""GPUs, as the NVIDIA driver and the PCI bus tell them."""

import re

from pdctl.base.hostfacts import Gpu, NvidiaFacts
from pdctl.observe.host.raw import items, mapping, output, said, text, whole

_LINE = re.compile(
    r"^\s*(\d{1,4}), (.+), ([^,]+), ([^,]+), ([^,]+), ([0-9A-Fa-f:.]+)\s*$", re.MULTILINE
)
_DRIVER = re.compile(r"^NVRM version:.*?\b(\d{3,4}\.\d+(?:\.\d+)?)\b", re.MULTILINE)
_GPU_CLASSES = ("0x0300", "0x0302")  # VGA and 3D controllers
_SWITCH_CLASS = ("0x0680",)  # a bridge of NVIDIA's is an NVSwitch
_MODULES = ("nvidia", "nvidia_peermem", "efa_nv_peermem", "gdrdrv")


def read_nvidia(raw: object) -> NvidiaFacts:
    """From the script's `nvidia`."""
    answer = mapping(raw)
    printed = output(answer.get("smi"))
    version = text(answer.get("version"))
    driver = _DRIVER.search(version)
    gpus = tuple(_gpu(match) for match in _LINE.finditer(printed or ""))
    error = said(answer.get("smi")) if printed is None else ""
    if printed and not gpus:
        error = printed.strip().splitlines()[-1][:300] if printed.strip() else ""
    return NvidiaFacts(
        gpus=gpus,
        on_bus=_on_bus(answer.get("pci"), _GPU_CLASSES),
        driver=driver[1] if driver else next((gpu.driver for gpu in gpus if gpu.driver), None),
        open_module="Open Kernel Module" in version if version else None,
        modules=tuple(name for name in _MODULES if name in items(answer.get("modules"))),
        switches=_on_bus(answer.get("pci"), _SWITCH_CLASS),
        fabric_manager=_service(answer.get("fabric_manager")),
        error=error,
    )


def _gpu(match: re.Match[str]) -> Gpu:
    driver = match[5].strip()
    return Gpu(
        index=int(match[1]),
        name=match[2].strip(),
        memory_mib=whole(match[3].strip()),
        used_mib=whole(match[4].strip()),
        driver=driver if driver[:1].isdigit() else None,
        bus=match[6].lower(),
    )


def _on_bus(pci: object, classes: tuple[str, ...]) -> int | None:
    if not isinstance(pci, list):
        return None
    return sum(text(mapping(each).get("class")).startswith(classes) for each in pci)


def _service(run: object) -> str | None:
    """`active`, `inactive`, `failed` …, `not installed`; None where systemd is not there."""
    state = text(mapping(run).get("out")).strip()
    known = ("active", "inactive", "failed", "activating", "deactivating")
    if state not in known:
        return None
    # `inactive` with status 4 is newer systemds' word for a unit that does not exist; for older
    # ones it is `inactive` like any other.
    return "not installed" if mapping(run).get("status") == 4 else state
