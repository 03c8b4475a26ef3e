"""Checks of GPUs and of the way from their memory to EFA."""

from pdctl.base.facts import PairFacts
from pdctl.base.hostfacts import EfaFacts, HostFacts, HostWant, NvidiaFacts
from pdctl.doctor.rows.host_view import find, of_efa_part, of_part
from pdctl.doctor.table import Check, Fix, Judge, Verdict, failed, passed, skipped, warned
from pdctl.observe.host.raw import at_least, numbers

_DRIVER_OF_CUDA = {13: "580", 12: "525.60.13"}
"""The oldest driver for each CUDA; NVIDIA's compatibility table."""
_EFA_FOR_580 = "2.17.3"  # installer 1.43.3: "Support P2P with NVIDIA 580 drivers"
_HIDDEN_SWITCHES = ("B200", "B300")
"""GPUs whose NVSwitches are no devices of NVIDIA's on the PCI bus."""
_START = ("sudo systemctl enable --now nvidia-fabricmanager",)
_BUSY = 0.05  # of a GPU's memory; a driver alone takes less


def _on_gpus(judge: Judge) -> Judge:
    """Skips where no engine of the host computes on a GPU."""

    def judged(facts: PairFacts, target: str) -> Verdict:
        want = find(facts, target).want
        if want is not None and not want.engine:
            return skipped("no engine runs on this host")
        if want is not None and want.on_cpu:
            return skipped("the engines of this host compute on the CPU")
        return judge(facts, target)

    return judged


def _driver(host: HostFacts, want: HostWant, nvidia: NvidiaFacts) -> Verdict:
    if not nvidia.gpus:
        if nvidia.on_bus == 0:
            return failed("the PCI bus has no NVIDIA GPU", fix=Fix("use a host with GPUs"))
        mend = next((fix for text, fix in _MEND if text in nvidia.error), None)
        return failed(f"nvidia-smi: {nvidia.error or 'it lists no GPU'}", fix=mend)
    cuda = host.nixl.cuda if host.nixl else None
    major = numbers(cuda)
    oldest = _DRIVER_OF_CUDA.get(major[0]) if major else None
    if oldest and at_least(nvidia.driver, oldest) is False:
        return failed(
            f"driver {nvidia.driver}, expected {oldest} or newer: torch was built for CUDA {cuda}"
        )
    return passed(f"driver {nvidia.driver}" + (f", CUDA {cuda}" if cuda else ""))


_MEND = (
    (
        "mismatch",
        Fix(
            "the driver was updated while its module was loaded: reboot the host", ("sudo reboot",)
        ),
    ),
    (
        "no answer within",
        Fix(
            "the driver hangs: look for Xid errors, then reboot the host",
            ("sudo dmesg | grep -i -e nvrm -e xid", "sudo reboot"),
        ),
    ),
)
"""What to do about what nvidia-smi says, by a text in it."""


def _count(host: HostFacts, want: HostWant, nvidia: NvidiaFacts) -> Verdict:
    count = len(nvidia.gpus)
    names = ", ".join(sorted({gpu.name for gpu in nvidia.gpus})) or "none"
    if nvidia.on_bus is not None and count < nvidia.on_bus:
        return failed(
            f"nvidia-smi lists {count} GPUs ({names}), the PCI bus has {nvidia.on_bus}",
            fix=Fix(
                "a GPU has failed: look for Xid errors, reboot, and if it stays away replace the "
                "host",
                ("sudo dmesg | grep -i xid", "sudo reboot"),
            ),
        )
    if want.gpus is None:
        return passed(f"{count} GPUs ({names})")
    evidence = f"{count} GPUs ({names}), expected at least {want.gpus}"
    if count < want.gpus:
        return failed(evidence)
    if len({gpu.name for gpu in nvidia.gpus}) > 1:
        return warned(evidence, "they are not all of one kind")
    return passed(evidence)


def _memory(host: HostFacts, want: HostWant, nvidia: NvidiaFacts) -> Verdict:
    if host.limits is not None and host.limits.engines:
        return skipped("engines of this deployment run on them")
    known = [g for g in nvidia.gpus if g.memory_mib and g.used_mib is not None]
    if not known:
        return skipped("nvidia-smi does not tell the memory of its GPUs")
    busy = [
        f"GPU {g.index}: {g.used_mib} of {g.memory_mib} MiB are in use"
        for g in known
        if (g.used_mib or 0) > _BUSY * (g.memory_mib or 0)
    ]
    return warned(*busy) if busy else passed(f"{len(known)} GPUs are free")


def _fabric_manager(host: HostFacts, want: HostWant, nvidia: NvidiaFacts) -> Verdict:
    state = nvidia.fabric_manager
    if state is None:
        return skipped("systemd is not there to tell of nvidia-fabricmanager")
    if state == "active":
        return passed("nvidia-fabricmanager is active")
    hidden = any(each in gpu.name for gpu in nvidia.gpus for each in _HIDDEN_SWITCHES)
    if nvidia.switches == 0 and not hidden:
        return skipped("the PCI bus has no NVSwitch")
    if state == "not installed":
        if not nvidia.switches:
            return skipped("there is no service nvidia-fabricmanager; only NVSwitch hosts need it")
        return failed(
            f"nvidia-fabricmanager is not installed, and the PCI bus has {nvidia.switches} "
            "NVSwitches",
            fix=Fix("install it in exactly the driver's version, then start it", _START),
        )
    return failed(f"nvidia-fabricmanager is {state}, expected active")


def _direct(host: HostFacts, want: HostWant, efa: EfaFacts) -> Verdict:
    nvidia = host.nvidia
    if nvidia is None or not efa.devices:
        return skipped("GPUs or EFA devices are not known")
    said = {device.p2p for device in efa.devices}
    if said == {None}:
        return _guessed(nvidia)
    closed = [device.name for device in efa.devices if not device.p2p]
    if not closed:
        ways = ", ".join(sorted(each for each in said if each))
        return passed(f"all {len(efa.devices)} devices reach GPU memory ({ways})")
    empty = f"{', '.join(closed)}: `device/p2p` is empty, so the driver has no way to GPU memory"
    why = _why_closed(nvidia, efa)
    if nvidia.open_module and not _too_old_for_driver(nvidia, efa):
        left = "DMA-BUF is left, which libfabric tries first"
        return warned(empty, *why, left, severity="degrade")
    return failed(empty, *why)


def _too_old_for_driver(nvidia: NvidiaFacts, efa: EfaFacts) -> bool:
    return bool(at_least(nvidia.driver, "580")) and at_least(efa.module, _EFA_FOR_580) is False


def _why_closed(nvidia: NvidiaFacts, efa: EfaFacts) -> list[str]:
    why = []
    if nvidia.open_module is False:
        why.append(f"driver {nvidia.driver} is NVIDIA's closed module, expected the open one")
    if _too_old_for_driver(nvidia, efa):
        why.append(
            f"module efa {efa.module} with driver {nvidia.driver}, expected {_EFA_FOR_580} or newer"
        )
    if "efa_nv_peermem" not in nvidia.modules:
        why.append("module efa_nv_peermem is not loaded")
    return why


def _guessed(nvidia: NvidiaFacts) -> Verdict:
    """Older drivers do not tell; the closed module is what is known not to work."""
    if nvidia.open_module is False:
        return warned(
            f"driver {nvidia.driver} is NVIDIA's closed module; EFA needs the open one for this"
        )
    return skipped("this EFA driver does not tell whether it reaches GPU memory")


CHECKS: tuple[Check, ...] = (
    Check(
        id="host.gpu.driver",
        title="the NVIDIA driver answers and is new enough",
        scope="host",
        severity="block",
        judge=_on_gpus(of_part("nvidia", _driver)),
        meaning="Engines cannot start, or fail at their first CUDA call.",
        fix=Fix(
            "install the driver, or load its module",
            ("nvidia-smi", "sudo modprobe nvidia", "sudo dmesg | grep -i -e nvrm -e xid"),
        ),
        needs=("host.reach",),
    ),
    Check(
        id="host.gpu.count",
        title="there are enough GPUs for the engines of this host",
        scope="host",
        severity="block",
        judge=_on_gpus(of_part("nvidia", _count)),
        meaning="An engine that gets fewer GPUs than `tensor_parallel_size` does not start.",
        fix=Fix("lower `tensor_parallel_size`, or use a host with more GPUs"),
        needs=("host.reach", "host.gpu.driver"),
    ),
    Check(
        id="host.gpu.memory",
        title="the GPUs' memory is free before engines start",
        scope="host",
        severity="degrade",
        judge=_on_gpus(of_part("nvidia", _memory)),
        meaning="An engine takes a share of the whole memory and does not start when less is free.",
        fix=Fix("see who uses it, and end that", ("nvidia-smi",)),
        needs=("host.reach", "host.gpu.driver"),
    ),
    Check(
        id="host.gpu.fabric_manager",
        title="the fabric manager runs where there are NVSwitches",
        scope="host",
        severity="block",
        judge=_on_gpus(of_part("nvidia", _fabric_manager)),
        meaning="On hosts with NVSwitch no CUDA program starts without it.",
        fix=Fix("start it; where it refuses, install it in exactly the driver's version", _START),
        needs=("host.reach", "host.gpu.driver"),
    ),
    Check(
        id="host.gpu.direct",
        title="EFA reaches GPU memory directly",
        scope="host",
        severity="block",
        judge=_on_gpus(of_efa_part("efa", _direct)),
        meaning="NIXL's LIBFABRIC backend needs GPUDirect RDMA to move KV out of GPU memory.",
        fix=Fix(
            "use NVIDIA's open kernel modules and the newest EFA software, then load the link "
            "between the two",
            ("sudo modprobe efa_nv_peermem", "cat /sys/class/infiniband/rdmap*/device/p2p"),
        ),
        needs=("host.reach", "host.gpu.driver", "host.efa.devices"),
    ),
)
