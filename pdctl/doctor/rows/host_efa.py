"""Checks of EFA on each host: from the PCI bus up to what libfabric offers."""

from pdctl.base.hostfacts import BackendFacts, EfaFacts, FabricTool, HostFacts, HostWant
from pdctl.base.instances import rdma_read
from pdctl.doctor.rows.host_view import (
    EFA_INSTALLER,
    INSTALL_EFA,
    install_efa,
    of_efa_part,
    of_host,
    over_efa,
)
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.observe.host.efa import reads_by_rdma
from pdctl.observe.host.raw import at_least

LIBFABRIC = "1.21.0"
"""NIXL's LIBFABRIC backend needs this one or a newer one."""
_AMAZON = "/opt/amazon/efa/"
_FIRST_INSTALLER = "1.32.0"  # brings libfabric 1.21.0

_ATTACH = Fix(
    "launch the instance with EFA interfaces, or stop it, attach them and start it: they cannot be "
    "attached while it runs. Right after a boot they may take a minute to appear"
)


def _module(host: HostFacts, want: HostWant, efa: EfaFacts) -> Verdict:
    if efa.on_bus == 0 and not efa.devices:
        return failed(
            f"the PCI bus has no EFA device, expected {want.efa or 'at least one'}", fix=_ATTACH
        )
    if efa.module is None:
        return failed(f"{efa.on_bus} EFA devices are on the PCI bus, the module is not loaded")
    return passed(f"module efa {efa.module}")


def _devices(host: HostFacts, want: HostWant, efa: EfaFacts) -> Verdict:
    count = len(efa.devices)
    expected = want.efa or efa.on_bus or 1
    others = f"; besides {len(efa.others)} RDMA devices of other drivers" if efa.others else ""
    evidence = f"{count} EFA devices, expected {expected}{_of_type(want)}{others}"
    if count == 0:
        return failed(evidence)
    down = [f"{d.name}: port is {d.state}" for d in efa.devices if d.state not in (None, "ACTIVE")]
    if len(down) == count:
        return failed(evidence, *down)
    if count < expected or down:
        return warned(evidence, *down, severity="degrade")
    return passed(evidence)


def _of_type(want: HostWant) -> str:
    return f" on {want.instance_type}" if want.instance_type and want.efa else ""


def _rdma_read(host: HostFacts, want: HostWant, efa: EfaFacts) -> Verdict:
    answers = {device.name: reads_by_rdma(device) for device in efa.devices}
    unable = [name for name, reads in answers.items() if reads is False]
    if unable:
        return failed(f"{', '.join(unable)}: the device does not read by RDMA")
    if answers and all(answers.values()):
        ids = sorted({device.device or "?" for device in efa.devices})
        return passed(f"{len(answers)} of {len(answers)} devices read by RDMA ({', '.join(ids)})")
    return _by_type(want)


def _by_type(want: HostWant) -> Verdict:
    kind = want.instance_type
    known = rdma_read(kind) if kind else None
    if known is None:
        return skipped("neither the devices nor the instance type say whether they read by RDMA")
    text = f"{kind}, by the list of types, as the devices do not say"
    return passed(text) if known else failed(text)


def _installer(host: HostFacts, want: HostWant, efa: EfaFacts) -> Verdict:
    if efa.installer is None:
        return warned("/opt/amazon/efa_installed_packages is not there: the installer was not used")
    if at_least(efa.installer, _FIRST_INSTALLER) is False:
        return warned(f"EFA installer {efa.installer}, expected {_FIRST_INSTALLER} or newer")
    return passed(f"EFA installer {efa.installer}")


def _libfabric(host: HostFacts, want: HostWant, tools: tuple[FabricTool, ...]) -> Verdict:
    if not tools:
        return _without_fi_info(host)
    first = tools[0]
    enough = at_least(first.version, LIBFABRIC)
    evidence = f"{first.path}: libfabric {first.version}, expected {LIBFABRIC} or newer"
    if enough is None:
        return failed(f"{first.path} does not say its version: {first.error or 'no such line'}")
    if not enough:
        return failed(evidence)
    different = [t for t in tools[1:] if t.version != first.version]
    loaded = _loaded(host)
    if different and not (loaded and (loaded.library or "").startswith(_AMAZON)):
        found = [f"{t.path}: libfabric {t.version}" for t in different]
        return warned(evidence, *found, *_said(loaded), fix=_TWO, severity="degrade")
    return passed(evidence, *_said(loaded))


def _without_fi_info(host: HostFacts) -> Verdict:
    """A container may have the library and not the tool; what NIXL loaded is then what counts."""
    loaded = _loaded(host)
    if loaded is not None and loaded.ok and at_least(loaded.library_version, LIBFABRIC):
        return passed(*_said(loaded))
    return failed(
        "there is no fi_info, neither in /opt/amazon/efa/bin nor on the PATH; "
        f"expected libfabric {LIBFABRIC} or newer"
    )


_TWO = Fix(
    "two versions are installed, and the loader's path decides which one an engine gets: remove "
    "the distribution's",
    ("sudo apt-get remove libfabric1 libfabric-bin", "sudo ldconfig"),
)


def _loaded(host: HostFacts) -> BackendFacts | None:
    """The LIBFABRIC backend, with the library that it was really loaded with."""
    tried = host.nixl.backends if host.nixl else ()
    return next((each for each in tried if each.backend == "LIBFABRIC" and each.library), None)


def _said(loaded: BackendFacts | None) -> tuple[str, ...]:
    if loaded is None:
        return ()
    return (f"NIXL is loaded with {loaded.library} ({loaded.library_version})",)


def _provider(host: HostFacts, want: HostWant, tools: tuple[FabricTool, ...]) -> Verdict:
    if not tools:
        return skipped("there is no fi_info")
    first = tools[0]
    command = f"`{first.path} -p efa -t FI_EP_RDM`"
    if first.domains is None:
        return failed(f"{command} does not run: {first.error}")
    count = len(first.domains)
    expected = want.efa or (len(host.efa.devices) if host.efa else 0) or 1
    if count == 0:
        return failed(f"{command} offers nothing: {first.error}, expected {expected} devices")
    evidence = f"{command} offers {count} devices, expected {expected}{_of_type(want)}"
    return passed(evidence) if count >= expected else warned(evidence, severity="degrade")


def _environment(host: HostFacts, want: HostWant) -> Verdict:
    env = want.engine_env
    provider = env.get("FI_PROVIDER")
    if provider != "efa":
        return failed(
            f"FI_PROVIDER is {provider or 'not set'} for the engines, expected `efa`",
            fix=Fix("set `FI_PROVIDER: efa` in `model.env`", ("pdctl up",)),
        )
    rdma = env.get("FI_EFA_USE_DEVICE_RDMA")
    if rdma == "0":
        return failed("FI_EFA_USE_DEVICE_RDMA=0: RDMA and transfers from GPU memory are off")
    if rdma is not None:
        return warned(f"FI_EFA_USE_DEVICE_RDMA={rdma}: an engine aborts on a device without RDMA")
    return passed("FI_PROVIDER=efa, FI_EFA_USE_DEVICE_RDMA is not set")


CHECKS: tuple[Check, ...] = (
    Check(
        id="host.efa.module",
        title="the EFA driver is loaded",
        scope="host",
        severity="block",
        judge=of_efa_part("efa", _module),
        meaning="Without the driver there is no EFA device: NIXL's LIBFABRIC backend cannot start, "
        "or quietly takes TCP.",
        fix=Fix(
            "load the module, or install the EFA software, which brings it",
            ("sudo modprobe efa", *INSTALL_EFA),
        ),
        needs=("host.reach",),
    ),
    Check(
        id="host.efa.devices",
        title="all EFA devices of the instance are there and active",
        scope="host",
        severity="block",
        judge=of_efa_part("efa", _devices),
        meaning="None: KV cannot move over EFA. Fewer than the instance type has: transfers are "
        "slower, and a peer with all of them warns of a rail count mismatch.",
        fix=_ATTACH,
        needs=("host.reach", "host.efa.module"),
    ),
    Check(
        id="host.efa.rdma_read",
        title="the EFA devices read by RDMA",
        scope="host",
        severity="block",
        judge=of_efa_part("efa", _rdma_read),
        meaning="KV is pulled by RDMA reads. libfabric imitates them on a device that cannot, "
        "through host memory, which is slow, and refuses GPU memory.",
        fix=Fix("use an instance type whose EFA reads by RDMA, such as p5en.48xlarge (Nitro v4+)"),
        needs=("host.reach", "host.efa.devices"),
    ),
    Check(
        id="host.efa.installer",
        title="the EFA installer was used, and is new enough",
        scope="host",
        severity="note",
        judge=of_efa_part("efa", _installer),
        meaning="Driver, libfabric and rdma-core of different sources may not fit each other.",
        fix=install_efa(f"run the EFA installer {EFA_INSTALLER}"),
        needs=("host.reach",),
    ),
    Check(
        id="host.libfabric.version",
        title=f"libfabric is {LIBFABRIC} or newer",
        scope="host",
        severity="block",
        judge=of_efa_part("fabric", _libfabric),
        meaning="NIXL's LIBFABRIC backend does not load with an older libfabric, and says so only "
        "at log level INFO.",
        fix=install_efa("install the EFA software, which brings libfabric"),
        needs=("host.reach",),
    ),
    Check(
        id="host.libfabric.efa",
        title="libfabric offers the EFA provider on every device",
        scope="host",
        severity="block",
        judge=of_efa_part("fabric", _provider),
        meaning="NIXL sees EFA only through libfabric: what is not offered here is not used.",
        fix=Fix(
            "see why EFA is not offered",
            (
                "/opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM",
                "FI_LOG_LEVEL=info /opt/amazon/efa/bin/fi_info -p efa",
                "ls -l /dev/infiniband",
            ),
        ),
        needs=("host.reach", "host.libfabric.version", "host.efa.devices"),
    ),
    Check(
        id="host.efa.env",
        title="the engines' environment leaves EFA as it should be",
        scope="host",
        severity="degrade",
        judge=of_host(over_efa(_environment)),
        meaning="Without FI_PROVIDER=efa NIXL quietly takes TCP where EFA fails; "
        "FI_EFA_USE_DEVICE_RDMA is right when it is not set.",
        fix=Fix("take FI_EFA_USE_DEVICE_RDMA out of `model.env`", ("pdctl up",)),
        needs=("host.reach",),
    ),
)
"""In the order in which one builds on the other."""
