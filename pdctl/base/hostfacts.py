"""Facts of one host: what was asked of it, and what it said. Typed, frozen, fit to be saved.

`observe.host.read_host` fills them in and judges nothing; `doctor.rows.host` judges. What could
not be read is None or empty, and `problems` says why, by the name of the part.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pdctl.base.process import RoleName

Backend = Literal["UCX", "LIBFABRIC"]
PortKind = Literal["http", "side channel"]
Reach = Literal["open", "refused", "timeout", "unreachable", "unresolved"]

UNLIMITED = -1
"""Stands for a limit that there is none of."""


@dataclass(frozen=True)
class WantedPort:
    """A port that a process of the deployment listens on, on this host."""

    process: str
    kind: PortKind
    address: str
    port: int


@dataclass(frozen=True)
class WantedPeer:
    """A port of another process, which a process of this host connects to.

    Attributes:
        process: who listens there, such as `decode-0`.
        host: that process's host, as the target names it.
    """

    process: str
    host: str
    kind: PortKind
    address: str
    port: int


@dataclass(frozen=True)
class WantedPath:
    """A folder that grows.

    Attributes:
        use: what for, such as `engines`.
        needed: bytes that must be free there, as long as `done` does not exist.
        done: a file that says that what needs the space is there already.
    """

    use: str
    path: str
    needed: int
    done: str | None = None


@dataclass(frozen=True)
class HostWant:
    """What the deployment asks of one host.

    Attributes:
        target: kind of target, such as `local`.
        roles: what runs there.
        backends: of NIXL.
        on_cpu: the engines compute on the CPU.
        gpus: how many this host must have; 0 on the CPU, None when it is not known.
        instance_type: of EC2, where configured.
        efa: EFA devices that such an instance has; None when it is not known.
        engine_python: interpreter of the engine, whose NIXL is tried; None without an engine.
        engine_env: what engines find in their environment, as far as it concerns the transport.
        units: the engines are started by systemd units, whose own limits count.
        kv_bytes: what the KV caches of engines on the CPU take together.
        tensor_parallel: greatest tensor parallel size here.
        marks: what the mark of every process of the deployment begins with.
        paths, ports, peers: see there. Peers are those of processes that were started.
    """

    target: str = "local"
    roles: tuple[RoleName, ...] = ()
    backends: tuple[Backend, ...] = ("UCX",)
    on_cpu: bool = True
    gpus: int | None = 0
    instance_type: str | None = None
    efa: int | None = None
    engine_python: str | None = None
    engine_env: Mapping[str, str] = field(default_factory=dict)
    units: bool = False
    kv_bytes: int = 0
    tensor_parallel: int = 1
    marks: str = ""
    paths: tuple[WantedPath, ...] = ()
    ports: tuple[WantedPort, ...] = ()
    peers: tuple[WantedPeer, ...] = ()

    @property
    def engine(self) -> bool:
        """Whether an engine runs here."""
        return any(role != "router" for role in self.roles)

    @property
    def over_efa(self) -> bool:
        """Whether KV goes over EFA: LIBFABRIC is only worth anything with it."""
        return self.engine and "LIBFABRIC" in self.backends


@dataclass(frozen=True)
class SystemFacts:
    """The operating system.

    Attributes:
        distribution: `ubuntu 24.04`, from /etc/os-release.
        python: version of the Python that looked around.
        cpus: that this process may use.
        user: who looked around, which is who the engines run as.
    """

    distribution: str | None = None
    pretty: str | None = None
    kernel: str | None = None
    machine: str | None = None
    python: str | None = None
    cpus: int | None = None
    user: str | None = None


@dataclass(frozen=True)
class FabricTool:
    """One `fi_info` on the host.

    Attributes:
        path: the program.
        version: of its libfabric, such as `2.6.0amzn1.0`.
        domains: devices that it offers for EFA with FI_EP_RDM, each once, such as
            `rdmap85s0-rdm`; None when it could not be asked.
        fabrics: of the EFA provider, such as `efa-direct`.
        error: what it said instead.
    """

    path: str
    version: str | None = None
    domains: tuple[str, ...] | None = None
    fabrics: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class RdmaDevice:
    """One entry of /sys/class/infiniband.

    Attributes:
        driver: such as `efa`, `mlx5_core`.
        vendor, device: PCI ids, such as `0x1d0f` and `0xefa2`.
        state: of port 1, such as `ACTIVE`.
        p2p: who lets the device reach GPU memory, such as `NVIDIA`; empty for nobody, None when
            the driver does not say.
        caps: of the EFA driver (`efadv_query_device`); None when it could not be asked.
        read_bytes, read_answered: bytes of RDMA reads that this device started, and answered.
    """

    name: str
    driver: str | None = None
    vendor: str | None = None
    device: str | None = None
    state: str | None = None
    p2p: str | None = None
    caps: int | None = None
    read_bytes: int | None = None
    read_answered: int | None = None


@dataclass(frozen=True)
class EfaFacts:
    """EFA on this host.

    Attributes:
        devices: of the EFA driver.
        others: RDMA devices of other drivers.
        on_bus: EFA functions that the PCI bus has, with or without a driver; None when unknown.
        module: version of the loaded kernel module; None when it is not loaded.
        installer: version of the EFA installer; None when it was not used.
    """

    devices: tuple[RdmaDevice, ...] = ()
    others: tuple[RdmaDevice, ...] = ()
    on_bus: int | None = None
    module: str | None = None
    installer: str | None = None


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in MiB."""

    index: int
    name: str
    memory_mib: int | None = None
    used_mib: int | None = None
    driver: str | None = None
    bus: str | None = None


@dataclass(frozen=True)
class NvidiaFacts:
    """What the NVIDIA driver says.

    Attributes:
        gpus: as `nvidia-smi` lists them.
        on_bus: NVIDIA GPUs that the PCI bus has; None when unknown.
        driver: version of the kernel module, from /proc.
        open_module: it is the open one, which GPUDirect over EFA needs.
        modules: of `nvidia_peermem`, `efa_nv_peermem`, `gdrdrv`, `nvidia`, those that are loaded.
        switches: NVSwitches that the PCI bus has; None when unknown.
        fabric_manager: state of its service, such as `active`, or `not installed`; None where
            systemd is not there to tell.
        error: what nvidia-smi said instead.
    """

    gpus: tuple[Gpu, ...] = ()
    on_bus: int | None = None
    driver: str | None = None
    open_module: bool | None = None
    modules: tuple[str, ...] = ()
    switches: int | None = None
    fabric_manager: str | None = None
    error: str = ""


@dataclass(frozen=True)
class LimitFacts:
    """Resource limits; bytes, or `UNLIMITED`.

    Attributes:
        memlock, memlock_hard: of a process that this user starts.
        nofile: open files of one.
        engines: memory that running processes of the deployment may lock, by name.
    """

    memlock: int | None = None
    memlock_hard: int | None = None
    nofile: int | None = None
    engines: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MemoryFacts:
    """Memory, in bytes.

    Attributes:
        total, available: of the machine.
        limit: of the control group that this user's processes are in; None for none.
        used: what counts against that limit now.
        swap, swap_used: of the machine.
        shm, shm_free: of /dev/shm.
        huge_pages, huge_free: pages of `huge_size` bytes.
    """

    total: int | None = None
    available: int | None = None
    limit: int | None = None
    used: int | None = None
    swap: int | None = None
    swap_used: int | None = None
    shm: int | None = None
    shm_free: int | None = None
    huge_pages: int | None = None
    huge_free: int | None = None
    huge_size: int | None = None


@dataclass(frozen=True)
class DiskFacts:
    """Space for one wanted path.

    Attributes:
        at: the path itself or its nearest parent that exists.
        free, total: bytes this user may write, and size of the file system.
        free_inodes: files that may still be made; None where the file system has no such limit.
        writable: False when it is mounted read-only or this user may not write.
        done: what needs the space is there already.
    """

    path: str
    at: str | None = None
    free: int | None = None
    total: int | None = None
    free_inodes: int | None = None
    writable: bool | None = None
    done: bool = False
    error: str = ""


@dataclass(frozen=True)
class ClockFacts:
    """The wall clock.

    Attributes:
        synchronized: whether something keeps it right; None when nobody says.
        source: who says so: `chrony`, `systemd`, `kernel`.
        offset: seconds that the host's clock is ahead of ours.
        error_bar: seconds by which that may be wrong, which is half the round trip.
    """

    synchronized: bool | None = None
    source: str | None = None
    offset: float | None = None
    error_bar: float | None = None


@dataclass(frozen=True)
class PortFacts:
    """A wanted port.

    Attributes:
        free: it can be bound now; None when that could not be tried.
        holder: who listens there, such as `pid 12 (python)`; None when it cannot be seen.
        mark: of that process, when it belongs to a deployment.
        error: why it could not be tried.
    """

    port: WantedPort
    free: bool | None = None
    holder: str | None = None
    mark: str = ""
    error: str = ""


@dataclass(frozen=True)
class PeerFacts:
    """A connection to another process's port; `seconds` is how long the answer took."""

    peer: WantedPeer
    reach: Reach
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class BackendFacts:
    """Whether a NIXL agent with this backend could be made in the engine's Python.

    Attributes:
        ok: None when it could not be tried.
        error: what NIXL or the loader said.
        missing: libraries and symbol versions that the plugin does not find.
        library: the libfabric that it was loaded with, by path, and `library_version`.
    """

    backend: Backend
    ok: bool | None = None
    error: str = ""
    missing: tuple[str, ...] = ()
    library: str | None = None
    library_version: str | None = None


@dataclass(frozen=True)
class NixlFacts:
    """The engine's Python and its NIXL; versions are None when not installed.

    Attributes:
        python: version of that interpreter.
        cuda: that torch was built for, such as `13.0`.
        ucx: version of the UCX that NIXL brings.
        backends: those that were tried.
        error: why nothing could be tried.
    """

    python: str | None = None
    vllm: str | None = None
    torch: str | None = None
    cuda: str | None = None
    nixl: str | None = None
    ucx: str | None = None
    backends: tuple[BackendFacts, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class HostFacts:
    """One machine.

    Attributes:
        name: as the target names it.
        error: why it could not be looked at; None when it could.
        want: what was asked of it; None when nobody looked.
        seconds: how long looking took.
        problems: why a part could not be read, by the part's name.
    """

    name: str
    error: str | None = None
    want: HostWant | None = None
    seconds: float | None = None
    system: SystemFacts | None = None
    fabric: tuple[FabricTool, ...] | None = None
    efa: EfaFacts | None = None
    nvidia: NvidiaFacts | None = None
    limits: LimitFacts | None = None
    memory: MemoryFacts | None = None
    disks: tuple[DiskFacts, ...] | None = None
    clock: ClockFacts | None = None
    ports: tuple[PortFacts, ...] | None = None
    peers: tuple[PeerFacts, ...] | None = None
    nixl: NixlFacts | None = None
    problems: Mapping[str, str] = field(default_factory=dict)
