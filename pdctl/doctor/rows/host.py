"""Checks of each host: that it can be reached, has room, and reaches the others."""

from pdctl.base.facts import PairFacts
from pdctl.base.hostfacts import (
    UNLIMITED,
    ClockFacts,
    DiskFacts,
    HostFacts,
    HostWant,
    LimitFacts,
    MemoryFacts,
    PeerFacts,
    PortFacts,
    Reach,
    SystemFacts,
    WantedPath,
)
from pdctl.doctor.rows import host_efa, host_gpu, host_nixl
from pdctl.doctor.rows.host_view import GIB, find, gib, of_efa_part, of_part
from pdctl.doctor.table import Check, Fix, Status, Verdict, failed, passed, skipped, warned
from pdctl.observe.host.read import NO_PYTHON

_MEMLOCK = 16 * GIB  # less than this is known to be too little for EFA
_HUGE_PAGES = 5128  # of 2 MiB: what AWS's own EFA nodes set aside
_ENGINE_BYTES = int(1.5 * GIB)  # a small CPU engine without its KV cache
_SHM = GIB  # vLLM's message queues and NCCL between the GPUs of one engine
_SHM_NEEDED_FROM = 2  # GPUs
_CLOCK_S = 1.0
_INODES = 10_000
_EFA_SYSTEMS = ("ubuntu 22.04", "ubuntu 24.04")  # that NIXL over EFA is documented for


def _reach(facts: PairFacts, target: str) -> Verdict:
    if why := facts.not_asked.get(target):
        return skipped(why)
    host = find(facts, target)
    if host.error is not None:
        return failed(host.error, fix=_PYTHON if NO_PYTHON in host.error else None)
    if host.want is None:
        return passed("it was not looked at")
    took = "" if host.seconds is None else f", looked at in {host.seconds:.1f} s"
    return passed(f"it answers{took}")


_PYTHON = Fix("install Python, which is all that is needed", ("sudo apt-get install -y python3",))


def _system(host: HostFacts, want: HostWant, system: SystemFacts) -> Verdict:
    name = system.pretty or system.distribution or "an unknown system"
    evidence = f"{name}, kernel {system.kernel}, {system.machine}, Python {system.python}"
    if want.over_efa and system.distribution not in _EFA_SYSTEMS:
        expected = " or ".join(_EFA_SYSTEMS)
        return warned(evidence, f"AWS documents NIXL over EFA for {expected}")
    return passed(evidence)


def _disk(host: HostFacts, want: HostWant, disks: tuple[DiskFacts, ...]) -> Verdict:
    if not want.paths:
        return skipped("no configuration names a folder")
    bad: list[str] = []
    odd: list[str] = []
    seen: list[str] = []
    for path, disk in zip(want.paths, disks, strict=False):
        needed = 0 if disk.done else path.needed
        wanted = "nothing more is needed" if disk.done else f"needed {gib(needed)}"
        line = f"{path.use}: {gib(disk.free)} free at {disk.at}, {wanted}"
        if disk.error or disk.free is None:
            odd.append(f"{path.use}: {path.path}: {disk.error or 'its space is not known'}")
        elif disk.free < needed:
            bad.append(line)
        elif disk.writable is False and not want.units:
            bad.append(f"{path.use}: {disk.at} cannot be written by {_user(host)}")
        elif disk.free_inodes is not None and disk.free_inodes < _INODES:
            odd.append(f"{path.use}: only {disk.free_inodes} files may still be made at {disk.at}")
        else:
            seen.append(line)
    if bad:
        return failed(*bad, *odd, fix=_room(want.paths))
    return warned(*odd, *seen) if odd else passed(*seen)


def _user(host: HostFacts) -> str:
    return (host.system.user if host.system else None) or "this user"


def _room(paths: tuple[WantedPath, ...]) -> Fix:
    shown = tuple(dict.fromkeys(f"df -h {path.path}" for path in paths[:1]))
    return Fix("free some space, or put the folder on a larger disk", shown)


def _memory(host: HostFacts, want: HostWant, memory: MemoryFacts) -> Verdict:
    if memory.total is None:
        return skipped("/proc/meminfo does not tell the memory")
    room = min(memory.total, memory.limit if memory.limit is not None else memory.total)
    what = "the control group" if room < memory.total else "the machine"
    evidence = f"{gib(room)} in {what}, {gib(memory.available)} available"
    if memory.swap_used:
        evidence += f", {gib(memory.swap_used)} swapped out"
    if not want.kv_bytes:
        return passed(evidence)
    engines = sum(role != "router" for role in want.roles)
    needed = want.kv_bytes + engines * _ENGINE_BYTES
    expected = f"expected {gib(needed)}: {engines} engines with {gib(want.kv_bytes)} of KV cache"
    if room < needed:
        return failed(f"{evidence}, {expected}")
    running = host.limits is not None and bool(host.limits.engines)
    if not running and memory.available is not None and memory.available < needed:
        return warned(f"{evidence}, {expected}")
    return passed(f"{evidence}, {expected}")


def _shm(host: HostFacts, want: HostWant, memory: MemoryFacts) -> Verdict:
    if want.tensor_parallel < _SHM_NEEDED_FROM:
        return skipped("no engine here has more than one worker")
    if memory.shm is None:
        return skipped("the size of /dev/shm is not known")
    evidence = f"/dev/shm has {gib(memory.shm)}, {gib(memory.shm_free)} free"
    if memory.shm < _SHM:
        return failed(f"{evidence}, expected {gib(_SHM)} or more")
    return passed(evidence)


def _memlock(host: HostFacts, want: HostWant, limits: LimitFacts) -> Verdict:
    if limits.engines:
        values = limits.engines
    elif want.units:
        return passed("systemd's units of the engines set LimitMEMLOCK=infinity")
    elif limits.memlock is None:
        return skipped("the limit is not known")
    else:
        values = {"a process of this user": limits.memlock}
    low = {name: value for name, value in values.items() if 0 <= value < _MEMLOCK}
    evidence = [f"{name} may lock {_amount(value)}" for name, value in (low or values).items()]
    if low:
        return failed(*evidence, "expected: unlimited")
    return passed(*evidence)


def _amount(value: int) -> str:
    return "without limit" if value == UNLIMITED else f"{value // 1024} KiB"


def _huge_pages(host: HostFacts, want: HostWant, memory: MemoryFacts) -> Verdict:
    if memory.huge_pages is None or memory.huge_size is None:
        return skipped("/proc/meminfo tells nothing of huge pages")
    evidence = (
        f"{memory.huge_pages} huge pages of {memory.huge_size // 1024} KiB, "
        f"AWS's own EFA nodes have {_HUGE_PAGES} of 2048 KiB"
    )
    if memory.huge_pages == 0:
        return warned(evidence)
    return passed(evidence)


def _clock(host: HostFacts, want: HostWant, clock: ClockFacts) -> Verdict:
    if want.target == "local":
        return skipped("everything runs on this machine, by one clock")
    wrong = []
    if clock.synchronized is False:
        wrong.append(f"the clock is not synchronized, by {clock.source}'s word")
    if clock.offset is not None and clock.error_bar is not None:
        said = f"it is {_ahead(clock.offset)} this one, give or take {clock.error_bar:.2f} s"
        if abs(clock.offset) - clock.error_bar > _CLOCK_S:
            wrong.append(f"{said}; expected within {_CLOCK_S:g} s")
    else:
        said = "its offset is not known"
    if wrong:
        return warned(*wrong)
    if clock.synchronized is None and clock.offset is None:
        return skipped("nothing tells about the clock")
    return passed(f"synchronized by {clock.source}" if clock.synchronized else "set right", said)


def _ahead(offset: float) -> str:
    return f"{abs(offset):.2f} s {'ahead of' if offset >= 0 else 'behind'}"


def _ports(host: HostFacts, want: HostWant, ports: tuple[PortFacts, ...]) -> Verdict:
    if not ports:
        return skipped("no port is fixed: pdctl chooses them at `up`")
    told = [(each.port.port, *_told(each, want)) for each in ports]
    bad = [(port, text) for port, status, text in told if status == "fail"]
    unclear = [(port, text) for port, status, text in told if status == "warn"]
    evidence = [text for _, text in (*bad, *unclear)]
    if bad:
        return failed(*evidence, fix=_free_port(bad[0][0]))
    if unclear:
        return warned(*evidence, fix=_free_port(unclear[0][0]))
    return passed(*(text for _, _, text in told))


def _told(each: PortFacts, want: HostWant) -> tuple[Status, str]:
    """What is so of one port, and how that is to be taken."""
    port = each.port
    place = f"{port.address}:{port.port} ({port.kind} of {port.process})"
    if each.free:
        return "pass", f"{place} is free"
    if want.marks and each.mark == f"{want.marks}{port.process}":
        return "pass", f"{place} is held by {port.process} itself"
    if each.free is None:
        return "fail", f"{place} cannot be listened on: {each.error}"
    if each.holder is None:
        return "warn", f"{place} is held by a process that this user cannot see"
    return "fail", f"{place} is held by {each.holder}"


def _free_port(port: int) -> Fix:
    return Fix(
        "end what holds the port, or choose another one in the configuration (0 lets pdctl choose)",
        (f"sudo ss -ltnp 'sport = :{port}'",),
    )


def _peers(facts: PairFacts, target: str) -> Verdict:
    host = find(facts, target)
    if host.peers is None or not host.peers:
        return skipped(host.problems.get("peers") or "no process that it talks to was started")
    dead = {engine.name for engine in facts.engines if engine.error is not None}
    # What the engine's own check tells, which asks more of a side channel, is not told twice.
    told = {(each.engine, "side channel") for each in facts.side_channels if each.source == target}
    asked = [
        peer
        for peer in host.peers
        if peer.peer.process not in dead and (peer.peer.process, peer.peer.kind) not in told
    ]
    if not asked:
        return skipped("the engines that it talks to are told of by their own checks")
    closed = [peer for peer in asked if peer.reach != "open"]
    if closed:
        return failed(*map(_not_reached, closed), fix=_REACH_FIXES[closed[0].reach])
    return passed(*(f"{_peer(peer)} is open" for peer in asked))


def _peer(peer: PeerFacts) -> str:
    wanted = peer.peer
    return f"{wanted.address}:{wanted.port} ({wanted.kind} of {wanted.process})"


def _not_reached(peer: PeerFacts) -> str:
    why = {
        "refused": "nobody listens there (connection refused)",
        "timeout": "no answer: the packets are dropped on the way",
        "unresolved": "its name is not known on this host",
        "unreachable": "there is no way to it",
    }.get(peer.reach, peer.reach)
    return f"{_peer(peer)}: {why}" + (f": {peer.error}" if peer.error else "")


_REACH_FIXES: dict[Reach, Fix] = {
    "refused": Fix(
        "the process does not listen on that address: look at its log, and at what holds the port "
        "there",
        ("pdctl logs", "ss -ltn"),
    ),
    "timeout": Fix(
        "open the port between the hosts: in the security group (all traffic to and from itself), "
        "and in the hosts' own firewalls",
        ("sudo iptables -S", "sudo nft list ruleset"),
    ),
    "unresolved": Fix("use an address, or make the name known on every host"),
    "unreachable": Fix("see which way the host has to that address", ("ip route",)),
}

CHECKS: tuple[Check, ...] = (
    Check(
        id="host.reach",
        title="the host can be reached",
        scope="host",
        severity="block",
        judge=_reach,
        meaning="Nothing on this host can be looked at or changed.",
        fix=Fix("check the address, the network and the login"),
    ),
    Check(
        id="host.system",
        title="the operating system is one that this was made for",
        scope="host",
        severity="note",
        judge=of_part("system", _system),
        meaning="It may work; nobody documents that it does.",
        fix=Fix("use an image with Ubuntu 22.04 or 24.04"),
        needs=("host.reach",),
    ),
    Check(
        id="host.disk",
        title="there is room where engines, models and logs go",
        scope="host",
        severity="block",
        judge=of_part("disks", _disk),
        meaning="Installing stops half-way, or a full disk ends processes while they run.",
        fix=Fix("free some space"),
        needs=("host.reach",),
    ),
    Check(
        id="host.memory",
        title="there is memory for the engines",
        scope="host",
        severity="block",
        judge=of_part("memory", _memory),
        meaning="The kernel ends an engine that takes more than there is.",
        fix=Fix(
            "set a smaller `cpu_kv_cache_gib`, end other programs, or raise the limit of the "
            "control group"
        ),
        needs=("host.reach",),
    ),
    Check(
        id="host.shm",
        title="/dev/shm is large enough for engines with several workers",
        scope="host",
        severity="block",
        judge=of_part("memory", _shm),
        meaning="Workers of one engine talk through /dev/shm; a container's default of 64 MiB ends "
        "them with a bus error.",
        fix=Fix(
            "make it larger; a container needs `--shm-size` or `--ipc=host`",
            ("sudo mount -o remount,size=16G /dev/shm",),
        ),
        needs=("host.reach",),
    ),
    Check(
        id="host.clock",
        title="the clock is right",
        scope="host",
        severity="note",
        judge=of_part("clock", _clock),
        meaning="Logs of several hosts are put in order by their clocks, and AWS refuses requests "
        "of a clock that is minutes wrong. TTLs are not affected: each runs on one clock.",
        fix=Fix("let chrony keep the clock", ("sudo systemctl enable --now chrony",)),
        needs=("host.reach",),
    ),
    Check(
        id="host.ports",
        title="the ports of the deployment are free or its own",
        scope="host",
        severity="block",
        judge=of_part("ports", _ports),
        meaning="A process whose port is taken does not start; an engine whose side channel is "
        "taken may answer and move no KV.",
        fix=_free_port(8100),
        needs=("host.reach",),
    ),
    Check(
        id="host.peers",
        title="the host reaches the ports of the processes that it talks to",
        scope="host",
        severity="block",
        judge=_peers,
        meaning="Engines shake hands over the side channel before KV moves: an engine whose side "
        "channel cannot be reached serves, and every turn is computed again.",
        fix=_REACH_FIXES["timeout"],
        needs=("host.reach",),
    ),
    Check(
        id="host.memlock",
        title="engines may lock enough memory",
        scope="host",
        severity="block",
        judge=of_efa_part("limits", _memlock),
        meaning="RDMA locks the memory it registers; registration fails at the limit.",
        fix=Fix(
            "raise the limit, log in again, and start the engines again",
            (
                "printf '* soft memlock unlimited\\n* hard memlock unlimited\\n' | "
                "sudo tee /etc/security/limits.d/90-pdctl.conf",
                "ulimit -l",
            ),
        ),
        needs=("host.reach",),
    ),
    Check(
        id="host.huge_pages",
        title="huge pages are set aside for EFA",
        scope="host",
        severity="note",
        judge=of_efa_part("memory", _huge_pages),
        meaning="AWS sets them aside on EFA hosts; without them libfabric's buffers take ordinary "
        "pages. If `fork` fails for want of memory, set FI_EFA_USE_HUGE_PAGE=0.",
        fix=Fix(
            "set them aside",
            (
                f"echo 'vm.nr_hugepages={_HUGE_PAGES}' | sudo tee /etc/sysctl.d/90-pdctl.conf",
                "sudo sysctl --system",
            ),
        ),
        needs=("host.reach",),
    ),
    *host_efa.CHECKS,
    *host_gpu.CHECKS,
    *host_nixl.CHECKS,
)
