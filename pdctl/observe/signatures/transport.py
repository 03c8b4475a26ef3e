"""Lines of NIXL's backends, UCX, libfabric and EFA, and of the machine under them."""

from pdctl.base.fix import Fix
from pdctl.observe.signatures.model import ANYONE, NOTHING, Role, Signature

_HOST: tuple[Role, ...] = ("host",)
_BAR = "FACTS 8"

TRANSPORT: tuple[Signature, ...] = (
    Signature(
        id="nixl.backend.up",
        title="a transport was loaded",
        literals=("was instantiated",),
        pattern=r"^Backend (?P<backend>\w+) was instantiated",
        severity="note",
        good=True,
        meaning="KV goes over this one. On EFA hosts it must be LIBFABRIC; UCX is the default when "
        "nothing is set, and over EFA it is slow.",
        fix=NOTHING,
        source="run: recorded on vLLM 0.32.0; vllm#41814, nixl#909",
    ),
    Signature(
        id="nixl.rail",
        title="a network interface is used",
        literals=("Created rail ",),
        pattern=r"Created rail (?P<rail>\d+) \(device=(?P<device>[^,)]*)",
        severity="note",
        good=True,
        versions="NIXL with `NIXL_LOG_LEVEL=DEBUG` and LIBFABRIC",
        meaning="One for each EFA interface; a p5en has sixteen.",
        fix=NOTHING,
        source="vLLM's post of 2026-10-12, not run here",
    ),
    Signature(
        id="nixl.backend.unsupported",
        title="the transport cannot be loaded",
        literals=("unsupported backend '",),
        pattern=r"createBackend: unsupported backend '(?P<backend>\w+)'",
        severity="block",
        meaning="The plugin is there and its libraries are not, or they are too old. LIBFABRIC of "
        "NIXL 1.5.1 needs a symbol version that no released libfabric has.",
        fix=Fix(
            "for LIBFABRIC use the NIXL version that pdctl pins (1.5.0 with vLLM 0.33); "
            "`ldd -v` on the plugin names what is missing",
            ("pdctl doctor",),
        ),
        source=f"run: NIXL 1.5.1; {_BAR}",
    ),
    Signature(
        id="nixl.version.old",
        title="NIXL is too old for this vLLM",
        literals=("NIXL >= ",),
        pattern=r"NIXL >= (?P<wanted>[\d.]+) is required, but (?P<found>\S+) is installed",
        severity="block",
        versions="vLLM 0.33 and later",
        meaning="The engine does not start.",
        fix=Fix("let pdctl install the engine, or install the version it names", ("pdctl up",)),
        source=f"read: vLLM 0.33.0; {_BAR}",
    ),
    Signature(
        id="nixl.missing",
        title="NIXL is not installed",
        literals=("NIXL is not available",),
        pattern=r"NIXL is not available",
        severity="block",
        meaning="The engine does not start with NixlConnector.",
        fix=Fix("install NIXL into the engine's environment", ("pdctl up",)),
        source="read: vLLM 0.32.0",
    ),
    Signature(
        id="nixl.backend.error",
        title="the transport failed",
        literals=("NIXL_ERR_BACKEND", "backend creation failed for"),
        pattern=r"NIXL_ERR_BACKEND|createBackend: backend creation failed for",
        severity="block",
        meaning="At start: the device or the registration of memory failed. Later: a transfer did.",
        fix=Fix(
            "start with `NIXL_LOG_LEVEL=DEBUG` and look at the line before; check the locked "
            "memory limit (`ulimit -l unlimited`)",
            ("pdctl doctor",),
        ),
        source="nixl#503, aibrix#1433, vllm#22430",
        follows=(
            "efa.memlock",
            "efa.register.failed",
            "efa.provider.none",
            "efa.peer.unreachable",
            "efa.address.refused",
            "efa.transfer.failed",
            "ucx.qp.failed",
        ),
    ),
    Signature(
        id="nixl.backend.absent",
        title="the transport's plugin is missing",
        literals=("NIXL_ERR_INVALID_PARAM",),
        pattern=r"[Gg]etConnInfo.*NIXL_ERR_INVALID_PARAM",
        severity="block",
        meaning="Seen when a NIXL that was built by hand lacks the LIBFABRIC plugin.",
        fix=Fix("use NIXL's own wheel"),
        source="nixl#1411",
    ),
    Signature(
        id="nixl.not_found",
        title="NIXL was asked for something that it does not have",
        literals=("NIXL_ERR_NOT_FOUND",),
        pattern=r"NIXL_ERR_NOT_FOUND",
        severity="degrade",
        generic=True,
        meaning="At start: a transport that does not load, which NIXL names in the line before. "
        "Later: an engine whose connection was lost, or that was restarted.",
        fix=Fix("look at NIXL's own line before it", ("pdctl logs", "pdctl doctor")),
        source="run: NIXL 1.5.1; nixl#1983",
        follows=("nixl.backend.unsupported", "nixl.peer.unknown", "nixl.peer.disconnected"),
    ),
    Signature(
        id="nixl.param.invalid",
        title="NIXL was given something that does not fit",
        literals=("NIXL_ERR_INVALID_PARAM",),
        pattern=r"NIXL_ERR_INVALID_PARAM",
        severity="degrade",
        generic=True,
        meaning="At start: the transport got no connection data. Later: a read of blocks that the "
        "other engine has not registered.",
        fix=Fix("look at NIXL's own line before it", ("pdctl logs", "pdctl doctor")),
        source="read: NIXL 1.5.1",
        follows=("nixl.backend.absent", "nixl.peer.disconnected"),
    ),
    Signature(
        id="ucx.qp.failed",
        title="a queue pair could not be set up",
        literals=(") failed to modify to RTR", "mlx5dv_devx_obj_modify("),
        pattern=r"ibv_modify_qp\(.*failed to modify to RTR|mlx5dv_devx_obj_modify\(.*failed",
        severity="block",
        meaning="UCX chose a device or mode that does not work, or the peer was restarted at the "
        "same address.",
        fix=Fix("name the device (`UCX_NET_DEVICES`); after a restart, restart the pair"),
        source="aibrix#1433, vllm#49238",
    ),
    Signature(
        id="ucx.interface.gone",
        title="a network interface that UCX had opened went away",
        literals=("failed to get interface index for",),
        pattern=r"failed to get interface index for (?P<device>[^\s:]+)",
        severity="block",
        meaning="UCX opens every interface there is when an engine starts, those of containers and "
        "VPNs too. Once one is gone, new connections fail, requests that move KV get HTTP 500, and "
        "the worker may end with a segmentation fault in `ucp_ep_set_lanes_failed`.",
        fix=Fix("name the device that stays (`UCX_NET_DEVICES`), then restart this engine"),
        source="run: vLLM 0.32.0, NIXL 1.5.1; docs/facts.md 1",
    ),
    Signature(
        id="ucx.endpoint.timeout",
        title="the other engine no longer answers over UCX",
        literals=("UCX AM send failed",),
        pattern=r"UCX AM send failed with status (?P<status>-?\d+)",
        severity="degrade",
        meaning="Status -25 (reset): its process ended. -80 (timeout): the network, or it was "
        "restarted at the same address and this engine knows the old one.",
        fix=Fix(
            "nothing if it was once, as after a restart; if it goes on, restart both, prefill first"
        ),
        source="run: vLLM 0.32.0; vllm#49238",
        follows=("nixl.peer.disconnected", "engine.dead", "engine.worker.died", "host.oom"),
    ),
    Signature(
        id="ucx.contexts.exhausted",
        title="UCX has no more hardware contexts",
        literals=("mlx5dv_devx_alloc_uar",),
        pattern=r"mlx5dv_devx_alloc_uar",
        severity="block",
        meaning="Too many UCX threads in all engines of the host.",
        fix=Fix("lower `num_threads` in `kv_connector_extra_config`"),
        source="read: vLLM 0.31.0, a comment",
    ),
    Signature(
        id="ucx.cuda_ipc.off",
        title="KV does not go over NVLink",
        literals=("zcopy disabled as no nvlinks detected",),
        pattern=r"zcopy disabled as no nvlinks detected",
        severity="note",
        meaning="GPUs of one host have no NVLink between them; transfers take another way. Of no "
        "importance between hosts.",
        fix=NOTHING,
        source="nixl#1195, nixl#1097",
    ),
    Signature(
        id="ucx.cuda.missing",
        title="UCX was built without CUDA",
        literals=("cuda_copy' are not available", "not available, please use one or more of"),
        pattern=r"transports? '.*cuda_copy' (?:are|is) not available",
        severity="block",
        meaning="It cannot move GPU memory. NIXL's own wheel says so where there is no GPU driver.",
        fix=Fix("use NIXL's own wheel, which brings its UCX"),
        source="lmcache#725",
    ),
    Signature(
        id="ucx.device.missing",
        title="UCX does not have what it was told to use",
        literals=("not available, please use one or more of",),
        pattern=r"(?:transport|device)s? (?P<names>'[^']+'(?:,'[^']+')*) (?:is|are) not available, "
        r"please use one or more of",
        severity="degrade",
        meaning="A name in `UCX_NET_DEVICES` or `UCX_TLS` is not there on this host. UCX takes the "
        "rest, and fails if there is none.",
        fix=Fix("write one of the names that the line offers", ("pdctl up",)),
        source="read: UCX in NIXL 1.5.1",
    ),
    Signature(
        id="efa.memlock",
        title="too little memory may be locked",
        literals=(
            "Libfabric error: (-12)",
            "EFA internal error: (4112)",
            "fi_mr_reg failed on rail",
            "Unable to register MR",
            "Please set max locked memory",
        ),
        pattern=r"Libfabric error: \(-12\)|EFA internal error: \(4112\)"
        r"|(?:fi_mr_reg failed on rail|Unable to register MR).*: Cannot allocate memory"
        r"|Please set max locked memory",
        severity="block",
        meaning="Memory that the network card reads is locked. At the limit EFA cannot register "
        "the KV cache, or post its receive buffers.",
        fix=Fix(
            "`LimitMEMLOCK=infinity` in the unit, `--ulimit memlock=-1` for a container, "
            "/etc/security/limits.d for a session; then start the engine again",
            ("pdctl doctor --only host.memlock",),
        ),
        source="read: libfabric, NIXL 1.5.1, UCX; awsome-distributed-ai#647, bottlerocket#140",
    ),
    Signature(
        id="efa.provider.none",
        title="libfabric offers no EFA device",
        literals=(
            "fi_getinfo failed",
            "Topology discovery failed",
            "Failed to discover system topology",
            "Failed to discover EFA devices",
        ),
        pattern=r"fi_getinfo failed\b|Topology discovery failed - no suitable network provider"
        r"|Failed to discover (?:system topology|EFA devices)",
        severity="block",
        meaning="NIXL's LIBFABRIC backend has nothing to work with: the instance has no EFA "
        "interface, the driver is not loaded, a container does not see /dev/infiniband, or "
        "libfabric was built without EFA.",
        fix=Fix(
            "see what libfabric offers; EFA interfaces can only be attached to an instance that "
            "is stopped; a container needs `--device /dev/infiniband`",
            (
                "/opt/amazon/efa/bin/fi_info -p efa -t FI_EP_RDM",
                "pdctl doctor --only 'host.efa.*' --only 'host.libfabric.*'",
            ),
        ),
        source="run: NIXL 1.4.1 with libfabric 1.22 and no EFA",
    ),
    Signature(
        id="efa.tcp",
        title="KV goes over TCP, not over EFA",
        literals=(" devices (TCP fallback)",),
        pattern=r"^Discovered (?P<count>\d+) (?P<provider>\w+) devices \(TCP fallback\)",
        severity="degrade",
        versions="NIXL with `NIXL_LOG_LEVEL=INFO` and LIBFABRIC",
        meaning="libfabric offers no EFA device and `FI_PROVIDER` does not insist on one, so NIXL "
        "took TCP: slower by orders of magnitude.",
        fix=Fix(
            "set `FI_PROVIDER: efa` in `model.env`, which makes it an error, and mend EFA",
            ("pdctl doctor --only 'host.efa.*' --only 'host.libfabric.*'",),
        ),
        source="run: NIXL 1.4.1 with libfabric 1.22 and no EFA",
    ),
    Signature(
        id="efa.rdma_read.missing",
        title="the EFA device does not read by RDMA",
        literals=("has no rdma-read capability",),
        pattern=r"EFA device has no rdma-read capability",
        severity="block",
        meaning="`FI_EFA_USE_DEVICE_RDMA=1` is set on a device that cannot; libfabric ends the "
        "process.",
        fix=Fix(
            "take FI_EFA_USE_DEVICE_RDMA out; use an instance type whose EFA reads by RDMA, such "
            "as p5en.48xlarge (Nitro v4+)",
            ("pdctl doctor --only host.efa.rdma_read",),
        ),
        source="read: libfabric",
    ),
    Signature(
        id="efa.zone",
        title="the other host is in another availability zone",
        literals=("ibv_create_ah failed with EINVAL",),
        pattern=r"ibv_create_ah failed with EINVAL",
        severity="block",
        meaning="EFA does not cross zones or VPCs: HTTP and side channel work, and no KV moves. An "
        "address that is wrong gives the same line.",
        fix=Fix(
            "make all engines in one zone (`target.zones`)",
            ("pdctl doctor --only aws.zone --only aws.vpc",),
        ),
        source="read: libfabric",
    ),
    Signature(
        id="efa.peer.unreachable",
        title="the other host does not answer over EFA",
        literals=(
            "Unreachable remote (never",
            "Unresponsive remote (was",
            "CQ read failed on rail ",
            "' not received after ",
        ),
        pattern=r"Unreachable remote \(never received|Unresponsive remote \(was previously"
        r"|CQ read failed on rail (?P<rail>\d+)\b.* prov_errno: (?:13|15)\b"
        r"|Handshake from peer '(?P<peer>[^']*)' not received after",
        severity="block",
        meaning="From the beginning: the security group lacks a rule for all traffic to or from "
        "itself; a rule by addresses does not count for EFA. After it worked: the other engine or "
        "host is gone.",
        fix=Fix(
            "let the group of all EFA interfaces reach itself, ingress and egress; see that the "
            "other engine lives",
            ("pdctl doctor --only aws.security_group", "pdctl status"),
        ),
        source="read: libfabric's table of EFA errors, NIXL 1.5.1; awsome-distributed-ai#546",
        follows=("engine.dead", "efa.zone", "host.oom"),
    ),
    Signature(
        id="efa.rails",
        title="the hosts have different numbers of EFA devices",
        literals=("Rail count mismatch (local: ",),
        pattern=r"Rail count mismatch \(local: (?P<local>\d+), remote: (?P<remote>\d+)\)",
        severity="degrade",
        meaning="One of them has not all its EFA interfaces; transfers are slower by that share.",
        fix=Fix(
            "find the host that lacks some, and make it anew with all of them",
            ("pdctl doctor --only host.efa.devices --only aws.interfaces",),
        ),
        source="read: NIXL 1.5.1; nixl#1161",
    ),
    Signature(
        id="efa.address.refused",
        title="the other host's memory may not be read",
        literals=(
            "Libfabric error: (-13)",
            "EFA internal error: (4111)",
            "Remote key (RKEY) not registered",
            "CQ read failed on rail ",
        ),
        pattern=r"Libfabric error: \(-13\)|EFA internal error: \(4111\)"
        r"|Remote key \(RKEY\) not registered"
        r"|CQ read failed on rail (?P<rail>\d+)\b.* prov_errno: (?:[789]|14)\b",
        severity="block",
        meaning="The peer was restarted, or has freed what is being read; libfabric may then abort "
        "the whole process.",
        fix=Fix("restart the pair", ("pdctl down", "pdctl up")),
        source="read: libfabric's table of EFA errors, NIXL 1.5.1; nixl#2278, nixl#2250",
        follows=("engine.dead",),
    ),
    Signature(
        id="efa.transfer.failed",
        title="EFA could not complete a transfer",
        literals=("CQ read failed on rail ",),
        pattern=r"CQ read failed on rail (?P<rail>\d+) with error: (?P<why>.*?) "
        r"prov_errno: (?!(?:[789]|1[345])\b)(?P<code>\d+)",
        severity="degrade",
        meaning="The request whose blocks these were fails. `prov_errno` is EFA's own number; "
        "with `FI_LOG_LEVEL=warn` libfabric writes its text on the line before.",
        fix=Fix("look at the line before, and at the other engine's log", ("pdctl logs",)),
        source="read: NIXL 1.5.1, libfabric's table of EFA errors",
        follows=("engine.dead", "efa.memlock"),
    ),
    Signature(
        id="efa.register.failed",
        title="GPU memory could not be registered",
        literals=("fi_mr_reg failed on rail", "Unable to register MR"),
        pattern=r"fi_mr_reg failed on rail|Unable to register MR.*Bad address",
        severity="block",
        meaning="The way from the network card to GPU memory (dmabuf) does not work.",
        fix=Fix("a current GPU driver and EFA installer", ("pdctl doctor",)),
        source="nixl#1609",
    ),
    Signature(
        id="efa.peer_memory.missing",
        title="the network card cannot reach GPU memory",
        literals=(
            "Failed to register CUDA buffer with the EFA device",
            "VRAM memory requested but provider",
            "EFA cannot support FI_HMEM",
            "FI_HMEM cannot be supported",
        ),
        pattern=r"Failed to register CUDA buffer with the EFA device"
        r"|VRAM memory requested but provider does not support FI_HMEM"
        r"|EFA cannot support FI_HMEM because|FI_HMEM cannot be supported because",
        severity="block",
        meaning="Neither efa_nv_peermem nor dmabuf links the two; transfers that need it fail.",
        fix=Fix(
            "use NVIDIA's open kernel modules and the newest EFA software, then load the link "
            "between the two",
            ("sudo modprobe efa_nv_peermem", "cat /sys/class/infiniband/rdmap*/device/p2p"),
        ),
        source="libfabric#11256",
    ),
    Signature(
        id="efa.fork",
        title="a fork after EFA was set up",
        literals=("A process has executed an operation involving a call to the fork()",),
        pattern=r"A process has executed an operation involving a call to the fork\(\)",
        severity="block",
        meaning="Registered memory cannot be forked on this kernel; the EFA provider ends the "
        "process.",
        fix=Fix(
            "a current kernel; `VLLM_WORKER_MULTIPROC_METHOD=spawn`; `RDMAV_FORK_SAFE=1` costs "
            "memory and start time"
        ),
        source="libfabric#6332, gvisor#14042",
    ),
    Signature(
        id="gpu.memory.short",
        title="the GPU is not free enough to start",
        literals=("Free memory on device ",),
        pattern=r"Free memory on device (?P<device>\S+) \((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) "
        r"on startup is less than",
        severity="block",
        meaning="Another process has the memory; often the engine that was killed a moment ago, "
        "whose registered KV is still mapped.",
        fix=Fix("wait until it is gone, or end it", ("nvidia-smi", "pdctl down")),
        source="read: vLLM 0.32.0; vllm#58063",
    ),
    Signature(
        id="cpu.memory.short",
        title="the host has too little free memory to start",
        literals=(" on startup is less than desired CPU memory utilization",),
        pattern=r"Available memory on node (?P<node>\d+) "
        r"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than "
        r"desired CPU memory utilization",
        severity="block",
        meaning="vLLM on CPUs wants a share of the whole memory when no size is given for the KV "
        "cache.",
        fix=Fix("set `cpu_kv_cache_gib` for the role"),
        source="run: vLLM 0.32.0",
    ),
    Signature(
        id="gpu.oom",
        title="the GPU's memory is full",
        literals=("CUDA out of memory", "CUDA error: "),
        pattern=r"CUDA out of memory|CUDA error: out of memory",
        severity="block",
        meaning="The engine asked for more than there is, and mostly dies of it.",
        fix=Fix("lower `gpu_memory_utilization` or `max_num_seqs` of that role"),
        source="PyTorch's own text",
    ),
    Signature(
        id="port.in_use",
        title="a port is taken",
        literals=("ddress already in use",),
        # NCCL takes the next port by itself when one is taken, and says so.
        pattern=r"(?<!Call to bind failed: )[Aa]ddress already in use",
        severity="block",
        roles=ANYONE,
        meaning="The process cannot start. With two engines on one host it is often the side "
        "channel's port, which counts up with the data-parallel and tensor-parallel ranks.",
        fix=Fix(
            "give each engine its own `side_channel_port`, some apart, or 0 to let pdctl choose",
            ("pdctl up",),
        ),
        source="vllm#20965, vllm#25059",
    ),
    Signature(
        id="port.address",
        title="the address to listen on is not this host's",
        literals=("annot assign requested address", "ZMQError: No such device (addr="),
        pattern=r"[Cc]annot assign requested address(?: \(addr='(?P<address>[^']*)'\))?"
        r"|ZMQError: No such device \(addr='(?P<name>[^']*)'\)",
        severity="block",
        roles=ANYONE,
        meaning="The process cannot start, or its side channel is not there. On EC2 a public "
        "address is not the host's own.",
        fix=Fix(
            "name the address that the host itself has (`private_address` in `target.hosts`)",
            ("pdctl up",),
        ),
        source="the Linux kernel's and ZeroMQ's own texts; vllm#27083",
    ),
    Signature(
        id="host.oom",
        title="the kernel killed a process for want of memory",
        literals=("ut of memory: Killed process", "process of this unit has been killed by the "),
        pattern=r"[Oo]ut of memory: Killed process (?P<pid>\d+) \((?P<process>[^)]*)\)"
        r"|process of this unit has been killed by the OOM killer",
        severity="block",
        roles=_HOST,
        meaning="If it was an engine, its KV and all handles to it are gone. `Memory cgroup` in "
        "the line: the limit of a container or unit was reached, not the machine's.",
        fix=Fix(
            "give the host, container or unit more memory, or the engine less (KV space, offload)"
        ),
        source="the Linux kernel's and systemd's own texts",
    ),
    Signature(
        id="logs.suppressed",
        title="journald threw lines away",
        literals=(" messages from ",),
        pattern=r"^Suppressed (?P<lines>\d+) messages from (?P<unit>\S+)",
        severity="degrade",
        roles=_HOST,
        meaning="The service wrote faster than journald allows. What was lost cannot be counted: "
        "every number of this report is too small.",
        fix=Fix("`LogRateLimitIntervalSec=0` in the unit of the service"),
        source="systemd-journald's own text",
    ),
    Signature(
        id="logs.dropped",
        title="the system log threw lines away",
        literals=(" messages lost due to rate-limiting", " messages due to rate-limiting"),
        pattern=r"(?P<lines>\d+) messages lost due to rate-limiting"
        r"|begin to drop messages due to rate-limiting",
        severity="degrade",
        roles=_HOST,
        meaning="What was lost cannot be counted: every number of this report is too small.",
        fix=Fix("raise the limit of rsyslog (`$imuxsockRateLimitInterval 0`)"),
        source="rsyslog's own text",
    ),
    Signature(
        id="logs.clock_skew",
        title="the clocks of two hosts differ",
        literals=(),
        pattern="",
        severity="note",
        roles=_HOST,
        meaning="An engine's line about a request is dated before the router's first or after its "
        "last about it. The order of events of several hosts is not to be trusted; each host's own "
        "is. TTLs are not affected, they run on one clock each.",
        fix=Fix("let the hosts keep time", ("timedatectl",)),
        source="concluded from lines of several logs about one request",
        derived=True,
    ),
)
