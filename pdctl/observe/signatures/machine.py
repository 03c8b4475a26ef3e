"""Lines of engines that do not start or lose a worker, and of the GPUs and hosts under them."""

from pdctl.base.fix import Fix
from pdctl.observe.signatures.model import ANYONE, Role, Signature

_HOST: tuple[Role, ...] = ("host",)
_READ = "read: vLLM 0.33.0"
_HUB = "read: huggingface_hub, transformers, vLLM 0.33.0"
_TORCH = "PyTorch's own text"
NO_START = (
    "gpu.memory.short",
    "cpu.memory.short",
    "engine.kv_cache.none",
    "gpu.driver.old",
    "gpu.fabric.down",
    "gpu.count.short",
    "model.heads",
    "model.context.long",
    "model.refused",
    "model.missing",
    "model.unreachable",
    "engine.arguments.refused",
    "port.in_use",
    "port.address",
    "efa.memlock",
    "efa.register.failed",
    "efa.provider.none",
    "efa.rdma_read.missing",
    "nixl.backend.error",
    "nixl.backend.unsupported",
    "nixl.backend.absent",
    "nixl.version.old",
    "nixl.missing",
    "kv.push.bidirectional",
    "kv.pcp.bidirectional",
    "kv.mamba.layout",
)
"""Why an engine does not start; its processes then end one after the other."""
_GONE = ("gpu.xid", "gpu.error", "gpu.oom", "host.shm.full", "host.oom")

MACHINE: tuple[Signature, ...] = (
    Signature(
        id="gpu.driver.old",
        title="the GPU's driver is missing, or too old for this engine",
        literals=("NVIDIA driver on your system", "CUDA error: "),
        pattern=r"NVIDIA driver on your system is too old(?: \(found version (?P<found>\d+)\))?"
        r"|Found no NVIDIA driver on your system|CUDA driver version is insufficient",
        severity="block",
        meaning="PyTorch was built for a newer CUDA than the driver knows (12080 is CUDA 12.8): "
        "CUDA 13 needs driver 580 or newer. No engine starts.",
        fix=Fix(
            "install a newer driver and reboot, or an engine that was built for an older CUDA",
            ("nvidia-smi", "pdctl doctor --only host.gpu.driver"),
        ),
        source=_TORCH,
    ),
    Signature(
        id="gpu.fabric.down",
        title="the GPUs' fabric manager does not run",
        literals=("Unexpected error from cudaGetDeviceCount", "CUDA error: "),
        pattern=r"system not yet initialized",
        severity="block",
        meaning="CUDA error 802: on hosts with NVSwitch (p4d, p5, p5e, p5en, p6) no CUDA program "
        "starts before nvidia-fabricmanager runs, in the driver's own version; nvidia-smi looks "
        "healthy meanwhile.",
        fix=Fix(
            "start it; install it in exactly the driver's version if it refuses",
            (
                "sudo systemctl enable --now nvidia-fabricmanager",
                "pdctl doctor --only host.gpu.fabric_manager",
            ),
        ),
        source=_TORCH,
    ),
    Signature(
        id="gpu.error",
        title="a GPU failed at work",
        literals=("CUDA error: ",),
        pattern=r"CUDA error: (?!out of memory|CUDA driver version|system not yet)(?P<what>.+)",
        severity="block",
        meaning="The worker ends with it, and its engine too. Memory errors (ECC) and lost GPUs "
        "are the hardware; illegal accesses mostly a fault of a kernel.",
        fix=Fix(
            "look for Xid errors of that time; if there are any, replace the host, else start the "
            "engine again",
            ("sudo dmesg | grep -i xid", "pdctl up"),
        ),
        source=_TORCH,
        follows=("gpu.xid",),
    ),
    Signature(
        id="gpu.xid",
        title="the GPU's driver reports an error",
        literals=("NVRM: Xid (",),
        pattern=r"NVRM: Xid \((?P<device>[^)]*)\): (?P<xid>\d+)",
        severity="degrade",
        roles=_HOST,
        meaning="13, 31, 43 and 45 are mostly a program's own fault. 48, 63, 64, 74, 79, 94, 95, "
        "119 and 120 are the GPU, its memory or its links.",
        fix=Fix(
            "for a fault of the GPU: take the host out, reboot it, and replace it if it comes back",
            ("sudo dmesg | grep -i xid", "nvidia-smi -q -d ECC,PAGE_RETIREMENT"),
        ),
        source="the NVIDIA driver's own text",
    ),
    Signature(
        id="gpu.count.short",
        title="the host has fewer GPUs than the engine wants",
        literals=("larger than the number of available GPUs",),
        pattern=r"World size \((?P<wanted>\d+)\) is larger than the number of available GPUs "
        r"\((?P<found>\d+)\)",
        severity="block",
        meaning="`tensor_parallel_size` is greater than the number of GPUs that the engine sees.",
        fix=Fix(
            "lower `tensor_parallel_size`, or see where the GPUs are (`CUDA_VISIBLE_DEVICES`)",
            ("nvidia-smi -L", "pdctl doctor --only host.gpu.count"),
        ),
        source=_READ,
    ),
    Signature(
        id="engine.kv_cache.none",
        title="no room is left for the KV cache",
        literals=(
            "No available memory for the cache blocks",
            "larger than the available KV cache memory",
        ),
        pattern=r"No available memory for the cache blocks"
        r"|larger than the available KV cache memory \((?P<available>[\d.]+) GiB\)",
        severity="block",
        meaning="After weights and activations too little memory is left for one request of "
        "`max_model_len`. The engine does not start.",
        fix=Fix(
            "lower `model.max_model_len`, raise `gpu_memory_utilization` of the role (on CPUs "
            "`cpu_kv_cache_gib`), or spread the model over more GPUs (`tensor_parallel_size`)"
        ),
        source=f"run: vLLM 0.32.0 on CPUs; {_READ}",
    ),
    Signature(
        id="nccl.failed",
        title="the workers of an engine lost each other",
        literals=(
            "NCCL error: ",
            "DistBackendError: NCCL error",
            "Watchdog caught collective operation timeout",
        ),
        pattern=r"NCCL error(?:: | in)|Watchdog caught collective operation timeout",
        severity="block",
        meaning="NCCL moves data between the GPUs of one engine; KV between engines is not its "
        "work. A GPU or a worker failed or hangs, or /dev/shm is full.",
        fix=Fix(
            "look at what stands before it in the same log; with `NCCL_DEBUG=WARN` NCCL says more",
            ("sudo dmesg | grep -i xid", "df -h /dev/shm"),
        ),
        source=f"{_READ}; {_TORCH}",
        follows=_GONE,
    ),
    Signature(
        id="host.shm.full",
        title="/dev/shm is full or too small",
        literals=("rror while creating shared memory segment", "failed to extend /dev/shm"),
        pattern=r"rror while creating shared memory segment /dev/shm|failed to extend /dev/shm",
        severity="block",
        meaning="Workers of one engine talk through it; a container has 64 MiB by default.",
        fix=Fix(
            "make it larger; a container needs `--shm-size` or `--ipc=host`",
            ("df -h /dev/shm", "sudo mount -o remount,size=16G /dev/shm"),
        ),
        source="NCCL's own text; vllm#11054",
    ),
    Signature(
        id="host.disk.full",
        title="a disk is full",
        literals=("No space left on device",),
        pattern=r"No space left on device",
        severity="block",
        roles=ANYONE,
        meaning="A download, a compiled kernel or a log cannot be written.",
        fix=Fix(
            "make room where models, caches and logs go, or put them on a larger disk",
            ("df -h", "pdctl doctor --only host.disk"),
        ),
        source="the Linux kernel's own text",
    ),
    Signature(
        id="model.refused",
        title="the hub does not give the model out",
        literals=(
            "trying to access a gated repo",
            "Cannot access gated repo",
            "is a gated repository",
            "Error: 401 Client Error",
            "Error: 403 Client Error",
        ),
        pattern=r"trying to access a gated repo|Cannot access gated repo|is a gated repository"
        r"|Error: (?P<status>40[13]) Client Error",
        severity="block",
        meaning="The model is gated or private and the token is missing or has no right to it; for "
        "a name that does not exist the hub says the same.",
        fix=Fix(
            "accept the model's terms on the hub with the account of the token, and set HF_TOKEN "
            "in your environment, which pdctl passes on",
            ("pdctl up",),
        ),
        source=_HUB,
    ),
    Signature(
        id="model.missing",
        title="there is no such model",
        literals=(
            "is not a valid model identifier listed on",
            "Invalid repository ID or local directory specified",
            "Error: 404 Client Error",
        ),
        pattern=r"is not a valid model identifier listed on"
        r"|Invalid repository ID or local directory specified"
        r"|RepositoryNotFoundError: 404 Client Error",
        severity="block",
        meaning="Neither the hub nor this host has what `model.id` names.",
        fix=Fix("see `model.id`; a folder must be there, and readable, on every host"),
        source=_HUB,
    ),
    Signature(
        id="model.unreachable",
        title="the model is not on this host, and the hub cannot be reached",
        literals=("Error: We couldn't connect to '", "LocalEntryNotFoundError: "),
        pattern=r"We couldn't connect to '(?P<hub>[^']*)' to load|LocalEntryNotFoundError: ",
        severity="block",
        meaning="The host has no way to the hub, or works offline (`HF_HUB_OFFLINE`), and its "
        "cache does not have the files.",
        fix=Fix(
            "give the host a way out, or bring the model there first",
            ("pdctl doctor --only aws.internet", "pdctl up"),
        ),
        source=_HUB,
    ),
    Signature(
        id="model.context.long",
        title="the context is longer than the model's",
        literals=("is greater than the derived",),
        pattern=r"max_model_len \((?P<wanted>\d+)\) is greater than the derived",
        severity="block",
        meaning="The engine does not start.",
        fix=Fix("lower `model.max_model_len`, or leave it out"),
        source=_READ,
    ),
    Signature(
        id="model.heads",
        title="the model cannot be divided among so many GPUs",
        literals=("must be divisible by tensor parallel size",),
        pattern=r"number of attention heads \((?P<heads>\d+)\) must be divisible by tensor "
        r"parallel size \((?P<size>\d+)\)",
        severity="block",
        meaning="Each GPU takes the same number of attention heads. The engine does not start.",
        fix=Fix("set a `tensor_parallel_size` that divides the number of heads"),
        source=_READ,
    ),
    Signature(
        id="engine.arguments.refused",
        title="the engine refuses its arguments",
        literals=("error: unrecognized arguments", "error: argument ", "ValidationError: "),
        pattern=r"error: (?:unrecognized arguments: |argument )(?P<what>.*)"
        r"|\bValidationError: \d+ validation errors? for (?P<config>\w*Config)\b",
        severity="block",
        meaning="This vLLM does not know an argument or a key, or not its value. The engine does "
        "not start.",
        fix=Fix(
            "take it out, or use a version that knows it; `pdctl render` writes what the "
            "configured version takes",
            ("pdctl render",),
        ),
        source=f"{_READ}; run: FACTS T8",
    ),
    Signature(
        id="engine.worker.died",
        title="a process of the engine is gone",
        literals=(" died unexpectedly",),
        # Exit code 0: it was ended, which vLLM says in the same words.
        pattern=r"(?:Worker ?[Pp]roc|Engine core proc(?:ess)?) (?P<process>.*?) died unexpectedly"
        r"(?! \(exit code: 0\))(?: \(exit code: (?P<code>-?\d+)\))?",
        severity="block",
        generic=True,
        meaning="The whole engine ends with it. Exit code -9: it was killed, mostly for want of "
        "memory; -11 or -6: it crashed, and the lines before say where.",
        fix=Fix(
            "look for the cause just above in the same log, and in the kernel's",
            ("sudo dmesg | tail -50", "pdctl up"),
        ),
        source=f"run: vLLM 0.32.0; {_READ}",
        follows=(
            *_GONE,
            "nccl.failed",
            "process.crashed",
            "efa.address.refused",
            "efa.fork",
            "ucx.interface.gone",
            "engine.abort.assertion",
            "engine.trim.assertion",
            *NO_START,
        ),
    ),
    Signature(
        id="engine.worker.silent",
        title="a worker has not answered for a minute",
        literals=("No available shared memory broadcast block found",),
        pattern=r"^No available shared memory broadcast block found in (?P<seconds>\d+) seconds",
        severity="note",
        meaning="While an engine starts, compiles or captures graphs this is as it should be. "
        "Later, and again and again, a worker hangs.",
        fix=Fix(
            "nothing while it starts; later look for `nccl.failed`, `gpu.xid` and transfers that "
            "hang"
        ),
        source=_READ,
    ),
    Signature(
        id="engine.cancelled",
        title="a process of the engine stopped waiting for another",
        literals=("RuntimeError: cancelled",),
        pattern=r"^RuntimeError: cancelled$",
        severity="note",
        generic=True,
        meaning="What is left of an engine says so when one of its processes is gone.",
        fix=Fix("look for the cause just above in the same log"),
        source="run: vLLM 0.32.0",
        follows=("engine.worker.died", "engine.dead"),
    ),
    Signature(
        id="engine.worker.timeout",
        title="a worker hangs",
        literals=("RPC call to ",),
        pattern=r"RPC call to (?P<call>\w+) timed out",
        severity="block",
        meaning="A step took longer than vLLM waits for it; the engine ends. A GPU, NCCL or a "
        "transfer hangs.",
        fix=Fix(
            "look for Xid errors and for what stands before it, then start it again",
            ("sudo dmesg | grep -i xid", "pdctl up"),
        ),
        source=_READ,
        follows=(*_GONE, "nccl.failed", "efa.peer.unreachable", "engine.worker.died"),
    ),
    Signature(
        id="process.crashed",
        title="a process crashed in native code",
        generic=True,
        literals=("Segfault encountered", "Fatal Python error: "),
        pattern=r"Segfault encountered|Fatal Python error: (?P<what>\w.*)",
        severity="block",
        meaning="Not Python but a library under it failed: NIXL, UCX, libfabric, NCCL or a kernel. "
        "The frames behind it name which.",
        fix=Fix("read the frames, then start the engine again", ("pdctl up",)),
        source=f"Python's and {_TORCH}; libfabric#11628, vllm#49238",
        follows=("ucx.interface.gone", "gpu.xid"),
    ),
)
