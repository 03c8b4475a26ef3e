"""Checks of NIXL in the engine's own Python, and of what must be equal on all hosts."""

from collections.abc import Iterator

from pdctl.base.facts import PairFacts
from pdctl.base.hostfacts import BackendFacts, HostFacts, HostWant, NixlFacts
from pdctl.doctor.rows.host_view import INSTALL_EFA, of_part
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.engine.versions import traits

_NOT_THERE = "No such file or directory"


def _backend(host: HostFacts, want: HostWant, nixl: NixlFacts) -> Verdict:
    if not want.engine:
        return skipped("no engine runs on this host")
    if nixl.error == _NOT_THERE:
        return skipped(f"no engine is installed yet: there is no {want.engine_python}")
    unknown = [each for each in nixl.backends if each.ok is None]
    broken = [each for each in nixl.backends if each.ok is False]
    if broken:
        return failed(*_evidence(nixl, broken), fix=_mend(broken[0]))
    if unknown or not nixl.backends:
        return skipped(nixl.error or (unknown[0].error if unknown else "nothing was tried"))
    return passed(*(_loaded(nixl, each) for each in nixl.backends))


def _loaded(nixl: NixlFacts, backend: BackendFacts) -> str:
    text = f"NIXL {nixl.nixl} makes an agent with {backend.backend}"
    if backend.backend == "UCX" and nixl.ucx:
        return f"{text} (UCX {nixl.ucx})"
    if backend.library:
        return f"{text} ({backend.library}, {backend.library_version})"
    return text


def _evidence(nixl: NixlFacts, broken: list[BackendFacts]) -> Iterator[str]:
    for each in broken:
        yield f"NIXL {nixl.nixl} makes no agent with {each.backend}: {each.error}"
        if each.missing:
            yield f"its plugin does not find: {', '.join(each.missing)}"


def _mend(broken: BackendFacts) -> Fix:
    """By what is missing; the plugin says one thing at a time, its loader all of them."""
    missing = " ".join((*broken.missing, broken.error))
    if "No module named" in broken.error:
        return Fix("install NIXL in the engine's Python", ("pdctl up",))
    steps: list[str] = []
    texts: list[str] = []
    if "FABRIC_1.10" in missing:
        texts.append(
            'pin `engine.nixl: "1.5.0"` (with vLLM 0.33), because the plugin of NIXL 1.5.1 needs a '
            "libfabric that nobody has released"
        )
    if "libhwloc" in missing:
        texts.append("install hwloc")
        steps.append("sudo apt-get install -y libhwloc15")
    if "libcuda.so" in missing or "libcudart" in missing:
        texts.append("install the NVIDIA driver and an engine for CUDA")
    if "libfabric.so" in missing and "FABRIC_" not in missing:
        texts.append("install the EFA software")
        steps += INSTALL_EFA
    if "fi_getinfo failed" in missing or "No network devices" in missing:
        texts.append("mend EFA first: libfabric offers no device")
        steps.append("/opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM")
    if not texts:
        return Fix(
            "see what the loader says of the plugin, and NIXL at its most talkative",
            ("NIXL_LOG_LEVEL=TRACE pdctl up",),
        )
    return Fix("; ".join(texts), tuple(steps))


def _version(host: HostFacts, want: HostWant, nixl: NixlFacts) -> Verdict:
    if nixl.vllm is None or nixl.nixl is None:
        return skipped("no engine with vLLM and NIXL is installed")
    try:
        ranges = traits(nixl.vllm).nixl.value
    except ValueError as error:
        return skipped(str(error))
    bad = [
        f"{backend}: {reason} (NIXL {nixl.nixl}, expected {ranges[backend]})"
        for backend in want.backends
        if (reason := ranges[backend].why_not(nixl.nixl))
    ]
    if bad:
        return failed(*bad)
    return passed(f"NIXL {nixl.nixl} goes with vLLM {nixl.vllm}")


_DECIDES = ("vLLM", "NIXL")
"""A difference in these may keep engines from talking to each other at all."""


def _equal(facts: PairFacts, _: str) -> Verdict:
    hosts = [host for host in facts.hosts if host.want is not None and host.want.engine]
    if len(hosts) < 2:
        return skipped("all engines are on one host")
    different = []
    for name, values in _software(hosts).items():
        known = {host: value for host, value in values.items() if value is not None}
        if len(set(known.values())) > 1:
            said = ", ".join(f"{host}: {value}" for host, value in known.items())
            different.append((name, f"{name} differs ({said})"))
    if not different:
        return passed(f"the same software on {len(hosts)} hosts")
    evidence = [text for _, text in different]
    if any(name in _DECIDES for name, _ in different):
        return failed(*evidence)
    return warned(*evidence)


def _software(hosts: list[HostFacts]) -> dict[str, dict[str, str | None]]:
    """What is installed, by name and host; None where it is not known."""
    return {
        "vLLM": {h.name: h.nixl.vllm if h.nixl else None for h in hosts},
        "NIXL": {h.name: h.nixl.nixl if h.nixl else None for h in hosts},
        "UCX": {h.name: h.nixl.ucx if h.nixl else None for h in hosts},
        "torch": {h.name: h.nixl.torch if h.nixl else None for h in hosts},
        "the engine's Python": {h.name: _minor(h.nixl.python if h.nixl else None) for h in hosts},
        "libfabric": {h.name: h.fabric[0].version if h.fabric else None for h in hosts},
        "the EFA installer": {h.name: h.efa.installer if h.efa else None for h in hosts},
        "module efa": {h.name: h.efa.module if h.efa else None for h in hosts},
        "the NVIDIA driver": {h.name: h.nvidia.driver if h.nvidia else None for h in hosts},
    }


def _minor(version: str | None) -> str | None:
    """A patch release of Python makes no difference here."""
    return ".".join(version.split(".")[:2]) if version else None


CHECKS: tuple[Check, ...] = (
    Check(
        id="host.nixl.version",
        title="NIXL's version goes with vLLM and the backend",
        scope="host",
        severity="block",
        judge=of_part("nixl", _version),
        meaning="vLLM refuses a NIXL that is too old; some NIXL builds cannot load their LIBFABRIC "
        "backend with any released libfabric.",
        fix=Fix("set `engine.nixl` to a version in the range", ("pdctl up",)),
        needs=("host.reach",),
    ),
    Check(
        id="host.nixl.backend",
        title="NIXL makes an agent with the configured backend",
        scope="host",
        severity="block",
        judge=of_part("nixl", _backend),
        meaning="The engine cannot move KV. NIXL lists a backend as available whether it loads or "
        "not, and says why not at log level INFO only.",
        fix=Fix("see what its plugin lacks"),
        needs=("host.reach",),
    ),
    Check(
        id="host.software.equal",
        title="all engine hosts have the same software",
        scope="pair",
        severity="degrade",
        judge=_equal,
        meaning="Hosts that differ work until one meets a bug, a limit or a format that the other "
        "does not have; differences in vLLM or NIXL break the handshake.",
        fix=Fix("install the same versions on all hosts", ("pdctl up",)),
        needs=("host.reach",),
    ),
)
