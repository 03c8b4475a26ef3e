"""Faults as whole logs tell them: the cause stands first, and nothing else is told as one.

Texts are of vLLM 0.33.0, NIXL, libfabric, NCCL, PyTorch and the kernel, read in their sources.
"""

import pytest

from pdctl.observe.logs.summary import Summary
from tests.observe.logs.helpers import events, summed

_AT = "11-29 15:29:2{}"


def core(second: int, said: str, level: str = "ERROR") -> str:
    return f"(EngineCore pid=12) {level} {_AT.format(second)} [core.py:1586] {said}"


def worker(second: int, said: str, level: str = "ERROR") -> str:
    return f"(Worker_TP3 pid=19) {level} {_AT.format(second)} [multiproc_executor.py:880] {said}"


def api(second: int, said: str, level: str = "ERROR") -> str:
    return f"(APIServer pid=10) {level} {_AT.format(second)} [core_client.py:600] {said}"


def raised(write, second: int, told: str, exception: str) -> str:
    frames = ("Traceback (most recent call last):", '  File "x.py", line 3, in f', "    f()")
    return "\n".join(write(second, said) for said in (told, *frames, exception))


def glog(second: int, said: str) -> str:
    return f"E1129 15:29:2{second}.140506   20230 libfabric_x.cpp:68] {said}"


NOT_STARTED = (
    raised(
        core, 7, "EngineCore failed to start.",
        "Exception: WorkerProc initialization failed due to an exception in a background process. "
        "See stack trace for root cause.",
    ),
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): "
    "{}",
)  # fmt: skip
DEAD = (
    core(6, "Worker proc VllmWorker-3 died unexpectedly (exit code: -9), shutting down executor."),
    raised(core, 7, "EngineCore encountered a fatal error.", "RuntimeError: cancelled"),
    raised(
        api, 8, "AsyncLLM output_handler failed.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
        "trace (above) for the root cause.",
    ),
    'INFO:     10.0.0.9:44012 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
)  # fmt: skip


def failed_start(exception: str) -> tuple[str, ...]:
    return (raised(worker, 5, "WorkerProc failed to start.", exception), *NOT_STARTED)


CASES = {
    "efa.provider.none": (
        glog(3, "fi_getinfo failed No data available"),
        glog(3, "No network devices found"),
        glog(3, "Topology discovery failed - no suitable network providers found"),
        glog(3, "Failed to create engine: Failed to discover system topology - cannot proceed"),
        glog(3, "createBackend: backend creation failed for 'LIBFABRIC'"),
        *failed_start("nixl_cu12._bindings.nixlBackendError: NIXL_ERR_BACKEND"),
    ),
    "nixl.backend.unsupported": (
        glog(3, "createBackend: unsupported backend 'LIBFABRIC'"),
        *failed_start("nixl_cu12._bindings.nixlNotFoundError: NIXL_ERR_NOT_FOUND"),
    ),
    "efa.memlock": (
        glog(3, "fi_mr_reg failed on rail 2: Cannot allocate memory (buffer=0xe15, length=104)"),
        glog(3, "Failed to register memory on rail 2"),
        *failed_start("nixl_cu12._bindings.nixlBackendError: NIXL_ERR_BACKEND"),
    ),
    "gpu.oom": failed_start("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB."),
    "engine.kv_cache.none": (  # as it was recorded on vLLM 0.32.0: the worker ends after it
        raised(core, 2, "EngineCore failed to start.",
               "ValueError: To serve at least one request with the model's max seq len (8192), "
               "(0.03 GiB KV cache is needed, which is larger than the available KV cache memory "
               "(0.03 GiB)."),
        core(6, "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down "
                "executor."),
        NOT_STARTED[1],
    ),
    "gpu.fabric.down": failed_start("RuntimeError: CUDA error: system not yet initialized"),
    "gpu.driver.old": failed_start(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080)."
    ),
    "host.shm.full": (
        "h1:168:168 [0] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-cjY8K5 (size 10617216), error: No space left on device (28)",
        *failed_start("RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG)"),
    ),
    "host.disk.full": failed_start("OSError: [Errno 28] No space left on device: '/models/x'"),
    "model.refused": (
        raised(api, 3, "x", "OSError: You are trying to access a gated repo."),
    ),
    "host.oom": (
        "Nov 29 15:29:25 h1 kernel: Memory cgroup out of memory: Killed process 19 (VLLM::Worker) "
        "total-vm:1kB",
        *DEAD,
    ),
    "engine.worker.died": (  # recorded: the worker was killed, and the kernel's log is not there
        DEAD[0],
        raised(core, 7, "EngineCore encountered a fatal error.", "RuntimeError: cancelled"),
        'Traceback (most recent call last):\n  File "x.py", line 3, in f\nRuntimeError: cancelled',
    ),
    "gpu.xid": (
        "Nov 29 15:29:24 h1 kernel: NVRM: Xid (PCI:0000:59:00): 79, pid=19, GPU has fallen off the "
        "bus.",
        raised(worker, 5, "x", "torch.AcceleratorError: CUDA error: unspecified launch failure"),
        "[rank1]:[E1129 15:29:26.421426415 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=1)",
        *DEAD,
    ),
    "efa.peer.unreachable": (
        glog(3, "Handshake from peer 'decode-1' not received after 60s; connection cannot be "
                "established."),
        raised(
            worker, 4, "NIXL transfer failure: transfer_exception | Context: {'request_id': 'r1'}",
            "nixl_cu12._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
        ),
        core(5, "Failing 1 request(s) due to KV load failure (failure_policy=fail, 790 tokens "
                "affected). Request IDs: {'r1'}"),
        'INFO:     10.0.0.9:44012 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
    ),
    "nixl.peer.disconnected": (  # recorded: the other engine was killed
        glog(3, "UCX AM send failed with status -25 (Connection reset by remote peer)"),
        raised(
            worker, 3, "NIXL transfer failure: transfer_exception | Context: {'request_id': 'r1'}",
            "nixl_cu12._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
        ),
    ),
    "kv.layout.mismatch": (
        raised(
            worker, 4, "NIXL transfer failure: handshake_failed | Context: {'request_id': 'r1'}",
            "RuntimeError: Heterogeneous TP expects same kv_cache_layout (local LBHNC, remote "
            "LBNHC). Or enable",
        ),
        core(5, "Failing 1 request(s) due to KV load failure (failure_policy=fail, 790 tokens "
                "affected). Request IDs: {'r1'}"),
    ),
}  # fmt: skip


def told(lines: tuple[str, ...]) -> Summary:
    return summed(*events("\n".join(lines) + "\n", role="decode"))


@pytest.mark.parametrize("cause", CASES)
def test_the_cause_stands_first_and_alone(cause: str) -> None:
    found = told(CASES[cause]).worst()
    assert found[0].signature.id == cause
    others = {f.signature.id: f.follows for f in found if f.severity != "note"}
    assert {id for id, follows in others.items() if follows is None} == {cause}, others


HEALTHY = (
    api(0, "vLLM API server version 0.33.0", "INFO"),
    worker(0, "vLLM is using nccl==2.29.7", "INFO"),
    worker(1, "NIXL is available", "INFO"),
    "2026-11-29 15:29:21 NIXL INFO    _api.py:405 Backend LIBFABRIC was instantiated",
    "I1129 15:29:21.140506   20230 libfabric_topology.cpp:142] Discovered 16 EFA devices",
    "D1129 15:29:21.140506   20230 rail.cpp:90] Created rail 3 (device=rdmap86s0-rdm, x)",
    "h1:168:168 [0] misc/socket.cc:500 NCCL WARN Call to bind failed: Address already in use",
    core(2, "No available shared memory broadcast block found in 60 seconds. This typically "
            "happens when some processes are hanging or doing some time-consuming work", "INFO"),
    worker(3, "Free memory on device (78.6/79.1 GiB) on startup. Desired GPU memory utilization is "
              "(0.9, 71.2 GiB). Actual usage is 15 GiB", "INFO"),
    core(4, "GPU KV cache size: 1,204,224 tokens", "INFO"),
    "INFO:     Application startup complete.",
)  # fmt: skip


def test_a_start_on_gpus_that_goes_well_is_no_fault() -> None:
    summary = told(HEALTHY)
    assert not summary.bad
    assert [f.signature.id for f in summary.worst()] == ["engine.worker.silent"]
