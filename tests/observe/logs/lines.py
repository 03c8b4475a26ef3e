"""Lines of every signature: some that are it, and some that nearly are.

Those of vLLM, NIXL and the example proxy come from real logs or from their source; addresses, ids
and times are made up.
"""

_W = "(Worker pid=12209) {} 11-29 15:29:23 [base_worker.py:153] "
WARN, ERR, INFO = (_W.format(level) for level in ("WARNING", "ERROR", "INFO"))
CORE = "(EngineCore pid=12188) ERROR 11-29 15:29:23 [scheduler.py:3417] "
CORE_WARN = "(EngineCore pid=12188) WARNING 11-29 15:29:23 [scheduler.py:3417] "
API = "(APIServer pid=12147) INFO 11-29 15:29:24 [loggers.py:335] "
EXAMPLE = "2026-11-29 15:29:10 [INFO] disagg_proxy: "
OURS = "2026-11-29 15:29:10,123 [INFO] demo pdctl.router: "
OURS_WARN = OURS.replace("INFO", "WARNING")
OURS_ERR = OURS.replace("INFO", "ERROR")
OWN = "WARNING 11-29 15:29:23 [pdctl supervise] "
ID = "a127c9ca-e1ec-46b1-935b-e8693aaabce9"
P, D = "http://10.0.0.1:8100", "http://10.0.0.2:8200"
LOAD = (
    "Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 0.0 tokens/s, "
    "Running: {} reqs, Waiting: {} reqs, {} KV cache usage: {}%, Prefix cache hit rate: 0.0%"
)
_FAILURE = (
    "NIXL transfer failure: {} | Context: {{'failure_type': 'x', 'request_id': 'cmpl-{}', "
    "'engine_id': 'b', 'remote_engine_id': 'a', 'remote_request_id': 'cmpl-9', 'remote_host': "
    "'10.0.0.1', 'remote_port': 5600, 'num_local_blocks': 6}}"
)
_METRICS = (
    "KV Transfer metrics: Num successful transfers=10, Avg xfer time (ms)=3.816, P90 xfer time "
    "(ms)=7.569, Avg post time (ms)=0.774, P90 post time (ms)=1.262, Avg MB per transfer=2.7, "
    "Throughput (MB/s)=707.473, Avg number of descriptors=17.6"
)

POSITIVE: dict[str, list[str]] = {
    "router.cache.miss": [
        EXAMPLE + f"[{ID}] conv=conv-0: cache MISS",
        EXAMPLE + f"[{ID}] conv=: cache MISS",
        OURS + f"[{ID}] conv=c1: cache MISS (first_turn, reused=0, prompt=300, retained=kept). "
        "Prefill done in 88ms",
        OURS + f"[{ID}] conv=c1: cache MISS (prefill_down, reused=0, prompt=None, retained=no, "
        "retries=prefill_status,other_decode)",
        OURS + f"[{ID}] conv=c1: cache MISS (first_turn, reused=0, prompt=300, retained=kept)",
        # It ended before decode could say what it keeps.
        OURS + f"[{ID}] conv=c1: cache MISS (first_turn, reused=0, prompt=None, retained=)",
    ],
    "router.cache.hit": [
        EXAMPLE + "conv=conv-0: cache HIT (age=0.0s)",
        OURS + f"[{ID}] conv=c1: cache HIT (continued, reused=448, prompt=700, retained=kept). "
        "Prefill done in 9ms",
        OURS + f"[{ID}] conv=c1: cache HIT (edited, reused=448, prompt=700, retained=kept, "
        "retries=decode_failed)",
    ],
    "router.prefill.done": [
        EXAMPLE + f"[{ID}] Prefill done in 102ms",
        OURS + "[r1] Prefill done in 7ms",
    ],
    "router.handle.kept": [
        EXAMPLE + "conv=c: cached D blocks (remote_request_id=chatcmpl-1-b3f4f25b, blocks=5)",
        OURS + "conv=c: cached D blocks (remote_request_id=cmpl-1, blocks=5, tokens=700)",
    ],
    "router.handle.sent": [
        EXAMPLE + f"[{ID}] conv=c: sending D's cached blocks to P (remote_request_id=chatcmpl-1)",
    ],
    "router.cache.off": [
        OURS + f"[{ID}] conv=c: cache OFF (reuse_off, reused=0, prompt=10, retained=not_kept)",
    ],
    "router.handle.settled": [OURS + "[r1] handle cmpl-1-0-ad8c6ea9 consumed (read)"],
    "router.handle.unknown": [OURS_WARN + "[r1] handle cmpl-1-0-ad8c6ea9 unknown (timeout)"],
    "router.conversation.unnamed": [
        "2026-11-29 15:29:23 [WARNING] disagg_proxy: "
        f"[{ID}] No conversation_id provided — KV cache reuse disabled for this request.",
    ],
    "router.handle.stale": [
        EXAMPLE + "conv=c: stale cache entry (age=460.0s > ttl=450.0s), discarding",
    ],
    "router.handle.expired": [OURS + "conv=c: handle expired"],
    "router.prefill.failed": [
        OURS_WARN + f"[r1] prefill {P} failed: status 500",
        OURS_WARN + f"[r1] prefill {P} failed: timeout ",
    ],
    "router.decode.interrupted": [
        OURS_WARN + "[r1] decode closed the connection in mid-answer",
    ],
    "router.alarm.prompt_mismatch": [
        OURS_ERR + "ALARM prompt_mismatch: /tokenize and prefill disagree for chat+tools",
    ],
    "router.alarm.audit": [OURS_ERR + f"ALARM audit_breach: [r1] {P} × {D}: token 3 differs"],
    "router.alarm.other": [OURS_ERR + "ALARM something_new: it happened"],
    "router.engine.down": [OURS_WARN + f"prefill {P} is down: does not answer"],
    "router.engine.up": [OURS + f"decode {D} is up (vLLM 0.33.0, block size 16)"],
    "router.engine.restarted": [OURS_WARN + f"{D} was restarted: 12 handles forgotten"],
    "router.pair.unproven": [
        OURS_WARN + f"pair {P} × {D} does not reuse: decode did not get prefill's blocks",
    ],
    "router.pair.proven": [OURS + f"pair {P} × {D} proven: blocks move both ways"],
    "router.reuse.switched": [OURS_WARN + "reuse is set to 0.25, by tenant: {'a': 1.0}"],
    "router.ttl.changed": [OURS_WARN + "handles are offered for 112 s from now on, not 472 s"],
    "router.release.failed": [
        OURS_WARN + "release of cmpl-1-0-ad8c6ea9 failed: Failure(status=500, kind='status')",
    ],
    "router.release.late": [
        OURS_WARN + "12 handles were not given back: decode keeps them for its TTL",
    ],
    "router.requestlog.broken": [
        OURS_ERR + "the request log /var/log/r.jsonl loses lines: No space left on device",
        OURS_ERR + "the request log /var/log/r.jsonl is not reopened: Permission denied",
        OURS_ERR + "the request log /var/log/r.jsonl grows on: Permission denied",
    ],
    "router.store.failed": [
        OURS_ERR + "the store redis://10.0.0.3:6379/0 fails (no answer within 0.5 s): turns run "
        "cold",
    ],
    "router.store.refused": [
        OURS_ERR + "the store redis://10.0.0.3:6379/0 refuses `put`: OOM command not allowed",
    ],
    "router.store.reset": [
        OURS_WARN + "the store redis://10.0.0.3:6379/0 was started anew, restored or failed over: "
        "no handle from before is used any more",
    ],
    "router.store.up": [
        OURS + "the store redis://10.0.0.3:6379/0 is there",
        OURS_WARN + "the store redis://10.0.0.3:6379/0 is back",
    ],
    "router.keys.broken": [OURS_ERR + "the API keys stay as they were: it has no key"],
    "router.files.few": [
        OURS_WARN + "this process may open 1024 files, too few for 1024 requests: raise `ulimit "
        "-n`",
    ],
    "router.started": [
        OURS + "pdctl router 0.4.0 listens on http://127.0.0.1:8000",
        EXAMPLE + "Ready: 1 prefill, 1 decode instances",
    ],
    "router.upstream.error": [
        "httpx.HTTPStatusError: Server error '500 Internal Server Error' for url "
        f"'{P}/v1/chat/completions'",
        f"httpx.HTTPStatusError: Client error '400 Bad Request' for url '{P}/v1/completions'",
    ],
    "router.min_tokens": [
        "ValueError: min_tokens must be less than or equal to max_tokens=1, got 5.",
    ],
    "kv.read.declined": [
        WARN + "Declining expired remote read for chatcmpl-1-8187488a from engine decode-15484.",
        "Declining expired remote read for req-1 from engine e",
    ],
    "kv.load.failed": [
        CORE + "Failing 1 request(s) due to KV load failure (failure_policy=fail, 790 tokens "
        "affected). Request IDs: {'chatcmpl-1-8187488a'}",
    ],
    "kv.load.recovered": [
        CORE_WARN + "Recovered from KV load failure: 2 request(s) rescheduled (790 tokens "
        "affected).",
    ],
    "kv.lease.expired": [
        WARN + "Releasing expired KV blocks for request chatcmpl-1-9485c3a7 which were retrieved "
        "by 0 remote worker(s) before lease expired.",
        WARN + "Releasing expired KV blocks for request chatcmpl-1 which were retrieved by 0 "
        "decode worker(s) within 480 seconds.",
    ],
    "kv.read.invalid": [
        ERR + "Potentially invalid KV blocks for unrecognized request cmpl-b30b-0-9e7bb757 were "
        "retrieved by a decode worker. They may have expired.",
    ],
    "kv.processing.skipped": [
        WARN + "Skipping KV post-processing for failed request chatcmpl-1-8187488a",
    ],
    "kv.transfer.metrics": [
        API + _METRICS,
        API + _METRICS + ", Num failed transfers=0, Num KV expired reqs=1",
    ],
    "kv.bidirectional.enabled": [
        INFO + "Bidirectional KV transfer is enabled and the kv recompute threshold is set to 64 "
        "tokens.KV blocks on D are released after a TTL of 12 seconds.",
        INFO + "Bidirectional KV transfer is enabled and the kv recompute threshold is set to 64 "
        "tokens",
    ],
    "kv.full": [API + LOAD.format(0, 1, "CPU", "87.0"), API + LOAD.format(0, 12, "GPU", "100.0")],
    "engine.load": [API + LOAD.format(3, 0, "GPU", "12.5"), API + LOAD.format(1, 2, "GPU", "95.0")],
    "kv.params.invalid": [
        CORE_WARN + "Got invalid KVTransferParams: {'do_remote_prefill': True}. This request will "
        "not utilize KVTransfer",
    ],
    "kv.connector.missing": [
        CORE_WARN + "Got kv_transfer_params, but no KVConnector found. Disabling KVTransfer for "
        "this request.",
    ],
    "kv.layers.mismatch": [
        ERR + "AssertionError: Number of KV layers must match between prefill and decode",
        "AssertionError: Number of KV layers must match between producer and consumer",
    ],
    "kv.push.bidirectional": [
        "ValueError: Bidirectional KV transfer is not supported for NIXL push connector.",
    ],
    "kv.pcp.bidirectional": [
        "ValueError: NixlConnector PCP producers do not support bidirectional KV transfer.",
    ],
    "kv.role.both": [
        WARN + "Using kv_role='kv_both' with NixlConnector is deprecated and will be removed in a "
        "future release.",
    ],
    "nixl.handshake.failed": [
        ERR + _FAILURE.format("handshake_failed", "1"),
        ERR + _FAILURE.format("handshake_setup_failed. Marking blocks", "1"),
        ERR + _FAILURE.format("push_reg_handshake_failed", "1"),
    ],
    "nixl.notification.failed": [
        ERR + _FAILURE.format("notification_failed. P worker blocks will be freed", "1"),
    ],
    "nixl.transfer.failed": [
        ERR + _FAILURE.format("transfer_setup_failed. Deferring failure reporting", "1"),
        ERR + _FAILURE.format("transfer_exception", "1"),
    ],
    "nixl.peer.disconnected": [
        "E1129 18:48:17.140506   20230 nixl_agent.cpp:1198] postXferReq: remote agent "
        "'513acda7-93c3' was disconnected after transfer request creation",
        ERR + "nixl_cu12._bindings.nixlRemoteDisconnectError: NIXL_ERR_REMOTE_DISCONNECT",
    ],
    "nixl.peer.unknown": [
        "E1129 18:48:17.140506   20230 nixl_agent.cpp:900] createXferReq: metadata for remote "
        "agent '513acda7' not found",
    ],
    "nixl.peer.replaced": [
        INFO + "Remote engine at 127.0.0.1:5601 changed from decode-15484 to decode-19762.",
    ],
    "nixl.peer.evicted": [INFO + "Evicted stale remote engine a403 (inactive for 3601.5s)."],
    "nixl.peer.invalidated": [
        WARN + "Local NIXL metadata for remote engine a403 was invalidated; re-handshaking after "
        "reads drain and a 2s backoff.",
    ],
    "nixl.heartbeat.failed": [WARN + "Failed to send heartbeat to engine a403"],
    "nixl.compat.passed": [
        INFO + "NIXL compatibility check passed (hash: 5467af03dbdf45886dd16366ff5d34a2)",
    ],
    "nixl.compat.mismatch": [
        "RuntimeError: NIXL compatibility hash mismatch. Local: 5467af, Remote: 99aabb. Prefill "
        "and decode instances have incompatible configurations.",
    ],
    "nixl.payload.unreadable": [
        "RuntimeError: Failed to decode NixlHandshakePayload. This likely indicates an "
        "incompatibility between connector version.",
        "RuntimeError: Failed to decode NixlAgentMetadata. Error: x",
    ],
    "nixl.engine_id.mismatch": [
        "RuntimeError: Remote NIXL agent engine ID mismatch. Expected decode-1,received prefill-1.",
    ],
    "nixl.sidechannel.silent": ["zmq.error.Again: Resource temporarily unavailable"],
    "kv.blocksize.mismatch": [
        "AssertionError: Local block size 16 is not divisible by remote block size 32 or vice "
        "versa.",
        WARN + "Not pairing remote 272-token blocks with local 528-token blocks: their 16-token "
        "common unit would split each block into more than 16 transfers.",
    ],
    "kv.tp.mismatch": [
        "AssertionError: Local tensor parallel size 3 is not divisible by remote tensor parallel "
        "size 2.",
        "AssertionError: Remote tensor parallel size 3 is not divisible by local tensor parallel "
        "size 2.",
    ],
    "kv.layout.mismatch": [
        "RuntimeError: Heterogeneous TP expects same kv_cache_layout (local LBHNC, remote LBNHC). "
        "Or enable experimental feature to receive LBHNC into a local LBNHC cache",
        "RuntimeError: Heterogeneous TP head-dimension splitting requires contiguous heads. Use a "
        "block-contiguous layout (e.g. LBHNC) on the prefill side.",
        "RuntimeError: Packed KV block rows differ between P and D. Use the same "
        "VLLM_KV_CACHE_LAYOUT and block size on both sides.",
    ],
    "kv.blocksize.none": ["ValueError: No common block size for 4."],
    "kv.mamba.layout": [
        "AssertionError: 3-read Mamba conv transfer requires DS conv state layout. Set "
        "VLLM_SSM_CONV_STATE_LAYOUT=DS",
    ],
    "kv.blocks.assertion": [ERR + "    assert dst_num_blocks == self.num_blocks"],
    "engine.spec.draft_missing": ["KeyError: 'draft_model.layers.0.self_attn.attn'"],
    "engine.abort.assertion": [CORE + "    assert req_id in self.requests"],
    "engine.trim.assertion": [ERR + "    assert num_decode_blocks <= len(prefill_group)"],
    "engine.dead": [
        "(EngineCore pid=1) ERROR 11-29 15:29:23 [core.py:1512] EngineCore encountered a fatal "
        "error.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack "
        "trace (above) for the root cause.",
    ],
    "engine.start.failed": [
        "Exception: WorkerProc initialization failed due to an exception in a background process.",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core "
        "proc(s): {}",
    ],
    "supervisor.restarted": [
        OWN + "decode-0 ended with SIGKILL after 812 s; it is started again in 1 s",
        OWN + "prefill-12 ended with status 1 after 3 s; it is started again in 60 s",
        OWN + "router-0 ended with signal 77 after 0 s; it is started again in 2 s",
    ],
    "supervisor.gave_up": [
        OWN + "decode-0 ended with status 1 after 9 s; 5 starts within 600 s did not last, so it "
        "is not started again",
    ],
    "supervisor.no_start": [
        OWN + "decode-0 cannot be started: No such file or directory: /opt/engine/bin/python",
        OWN + "router-1 cannot be started: Permission denied: /opt/pdctl/pdctl/bin/python",
    ],
    "engine.request.invalid": [
        "vllm.exceptions.VLLMValidationError: token_id(s) [99999] in logit_bias contain "
        "out-of-vocab token ids.",
    ],
    "cpu.memory.short": [
        "ValueError: Available memory on node 0 (9.47/12.09 GiB) on startup is less than desired "
        "CPU memory utilization (0.92, 11.12 GiB).",
    ],
    "engine.request.error": [
        "(APIServer pid=1) ERROR 11-29 15:29:23 [serving.py:203] Request chatcmpl-1 failed with an "
        "internal error during generation",
    ],
    "http.error": [
        'INFO:     127.0.0.1:44012 - "POST /v1/chat/completions HTTP/1.1" 500 Internal Server '
        "Error",
    ],
    "process.started": ["INFO:     Started server process [12147]"],
    "process.stopping": [
        "(APIServer pid=1) INFO 11-29 15:30:29 [launcher.py:254] [shutdown] API server: shutdown "
        "triggered",
    ],
    "process.traceback": [
        "Traceback (most recent call last):\n"
        '  File "server.py", line 3, in run\n    go()\nZeroDivisionError: division by zero',
    ],
    "nixl.backend.up": [
        "2026-11-29 15:28:57 NIXL INFO    _api.py:405 Backend LIBFABRIC was instantiated",
    ],
    "nixl.rail": [
        "D1129 15:28:57.140506   20230 rail.cpp:90] Created rail 3 (device=rdmap86s0-rdm, x)",
    ],
    "nixl.backend.unsupported": [
        "E1129 15:28:57.140506   20230 nixl_agent.cpp:9] createBackend: unsupported backend "
        "'LIBFABRIC'",
    ],
    "nixl.not_found": ["nixl_cu12._bindings.nixlNotFoundError: NIXL_ERR_NOT_FOUND"],
    "nixl.param.invalid": ["nixl_cu12._bindings.nixlInvalidParamError: NIXL_ERR_INVALID_PARAM"],
    "nixl.version.old": [
        "RuntimeError: NIXL >= 1.5.0 is required, but nixl-cu12==1.4.1 is installed",
    ],
    "nixl.missing": ["RuntimeError: NIXL is not available"],
    "nixl.backend.error": [
        "nixl_cu12._bindings.nixlBackendError: NIXL_ERR_BACKEND",
        "E1129 15:28:57.140506   20230 nixl_agent.cpp:404] createBackend: backend creation failed "
        "for 'LIBFABRIC'",
    ],
    "nixl.backend.absent": ["E1129 15:28:57.1 1 a.cpp:9] getConnInfo: NIXL_ERR_INVALID_PARAM"],
    "ucx.qp.failed": [
        "[1764430000.123456] [host:1:0] ib.c:12 UCX ERROR ibv_modify_qp(UMR QP mlx5_0) failed to "
        "modify to RTR: Invalid argument",
        "UCX ERROR mlx5dv_devx_obj_modify(opcode=0x503) failed, syndrome 0x1",
    ],
    "ucx.interface.gone": [
        "[1796028600.108246] [vm:27411:0]             sys.c:174  UCX  ERROR   failed to get "
        "interface index for veth26733: No such device"
    ],
    "ucx.endpoint.timeout": ["UCX AM send failed with status -80 (Endpoint timeout)"],
    "ucx.contexts.exhausted": ["UCX ERROR mlx5dv_devx_alloc_uar(device=mlx5_0) failed"],
    "ucx.cuda_ipc.off": ["UCX DIAG cuda-ipc get zcopy disabled as no nvlinks detected"],
    "ucx.cuda.missing": [
        "UCX WARN transports 'cuda_ipc','cuda_copy' are not available",
        "[1796028600.108246] [vm:27411:0] ucp_context.c:1050 UCX  WARN  transport 'cuda_copy' is "
        "not available, please use one or more of: cma, self, tcp",
    ],
    "ucx.device.missing": [
        "[1796028600.108246] [vm:27411:0] ucp_context.c:1050 UCX  WARN  network device 'eth9' is "
        "not available, please use one or more of: 'eth0'(tcp), 'lo'(tcp)",
        "[1796028600.108246] [vm:27411:0] ucp_context.c:1050 UCX  WARN  transports 'rc','ud' are "
        "not available, please use one or more of: cma, self, tcp",
    ],
    "efa.memlock": [
        "Libfabric error: (-12) Cannot allocate memory",
        "EFA internal error: (4112) Failure to post internal receive buffers",
        "E1129 15:28:57.140506   20230 libfabric_rail.cpp:1362] fi_mr_reg failed on rail 2: Cannot "
        "allocate memory (buffer=0xe15fbdc00000, length=1048576, requested_key=0)",
        "libfabric:42:1764430000::efa:mr:efa_mr_reg_impl():893<warn> Unable to register MR of "
        "1048576 bytes: Cannot allocate memory, flags 0",
        "UCX ERROR ibv_reg_mr(address=0x7f, length=1) failed: Cannot allocate memory : Please set "
        "max locked memory (ulimit -l) to 'unlimited' (current: 64 kbytes)",
    ],
    "efa.address.refused": [
        "Libfabric error: (-13) Permission denied",
        "EFA internal error: (4111) RMA address verification failed",
        "libfabric:42:1764430000::efa:cq:efa_cq_handle_error():103<warn> err: 22, message: Remote "
        "key (RKEY) not registered or does not match remote IOVA",
        "E1129 15:28:57.140506   20230 libfabric_rail.cpp:712] CQ read failed on rail 28 with "
        "error: Invalid argument prov_errno: 7 len: 65536",
    ],
    "efa.register.failed": [
        "fi_mr_reg failed on rail 3: Bad address",
        "Unable to register MR of 1048576 bytes: Bad address",
    ],
    "efa.peer_memory.missing": [
        "Failed to register CUDA buffer with the EFA device, FI_HMEM transfers that require peer "
        "to peer support will fail.",
        "W1129 15:28:57.140506   20230 libfabric_rail.cpp:1300] VRAM memory requested but provider "
        "does not support FI_HMEM - falling back to system memory registration",
        "libfabric:42:1764430000::efa:core:efa_user_info_check_hmem():1<warn> EFA cannot support "
        "FI_HMEM because the EFA device does not have RDMA support.",
        "libfabric:42:1764430000::efa:core:x():1<warn> FI_HMEM cannot be supported because no "
        "compatible libraries were found.",
    ],
    "efa.provider.none": [
        "E1129 15:28:57.140506   20230 libfabric_common.cpp:68] fi_getinfo failed No data",
        "E1129 15:28:57.140506   20230 libfabric_topology.cpp:53] Topology discovery failed - no "
        "suitable network providers found",
        "E1129 15:28:57.140506   20230 backend_plugin.h:102] Failed to create engine: Failed to "
        "discover system topology - cannot proceed without topology information",
        "E1129 15:28:57.140506   20230 x.cpp:1] Failed to discover EFA devices with hwloc",
    ],
    "efa.tcp": [
        "I1129 15:28:57.140506   20230 libfabric_topology.cpp:142] Discovered 1 tcp devices (TCP "
        "fallback)",
        "I1129 15:28:57.140506   20230 libfabric_topology.cpp:142] Discovered 2 sockets devices "
        "(TCP fallback)",
    ],
    "efa.rdma_read.missing": [
        "FI_EFA_USE_DEVICE_RDMA=1 was set by user, but EFA device has no rdma-read capability.  "
        "Application will abort().",
    ],
    "efa.zone": [
        "libfabric:42:1764430000::efa:av:efa_ah_alloc():1<warn> ibv_create_ah failed with EINVAL. "
        "Local GID: fe80::1, remote GID: fe80::2. Possible causes: 1) Remote GID is in a different "
        "availability zone (cross-AZ communication is not enabled).",
    ],
    "efa.rails": [
        "W1129 15:28:57.140506   20230 libfabric_backend.cpp:700] Rail count mismatch (local: 16, "
        "remote: 8)",
    ],
    "efa.peer.unreachable": [
        "libfabric:42:1764430000::efa:cq:efa_cq_handle_error():103<warn> err: 113, message: "
        "Unreachable remote (never received a response)",
        "libfabric:42:1764430000::efa:cq:efa_cq_handle_error():103<warn> err: 113, message: "
        "Unresponsive remote (was previously responsive)",
        "E1129 15:28:57.140506   20230 libfabric_rail.cpp:712] CQ read failed on rail 3 with "
        "error: No route to host prov_errno: 15 len: 0",
        "E1129 15:28:57.140506   20230 libfabric_backend.cpp:600] Handshake from peer 'decode-1' "
        "not received after 60s; connection cannot be established.",
    ],
    "efa.transfer.failed": [
        "E1129 15:28:57.140506   20230 libfabric_rail.cpp:712] CQ read failed on rail 28 with "
        "error: Input/output error prov_errno: 2 len: 65536",
    ],
    "efa.fork": ["A process has executed an operation involving a call to the fork() system call"],
    "gpu.memory.short": [
        "ValueError: Free memory on device cuda:0 (3.1/79.1 GiB) on startup is less than desired "
        "GPU memory utilization (0.9, 71.2 GiB).",
    ],
    "gpu.oom": [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA error: out of memory",
    ],
    "gpu.driver.old": [
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please "
        "update your GPU driver by downloading and installing a new version",
        "x/torch/cuda/__init__.py:180: UserWarning: CUDA initialization: The NVIDIA driver on your "
        "system is too old (found version 12020).",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA "
        "GPU and installed a driver",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
    ],
    "gpu.fabric.down": [
        "x/torch/cuda/__init__.py:129: UserWarning: CUDA initialization: Unexpected error from "
        "cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() "
        "that might have already set an error? Error 802: system not yet initialized (Triggered "
        "internally at /pytorch/c10/cuda/CUDAFunctions.cpp:109.)",
        "RuntimeError: CUDA error: system not yet initialized",
    ],
    "gpu.error": [
        "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ],
    "gpu.xid": [
        "Nov 29 15:29:23 h1 kernel: NVRM: Xid (PCI:0000:59:00): 79, pid=4711, name=python, GPU has "
        "fallen off the bus.",
        "[12345.678] NVRM: Xid (PCI:0000:59:00): 119, pid=4711, Timeout after 6s of waiting",
    ],
    "gpu.count.short": [
        "ValueError: World size (8) is larger than the number of available GPUs (4) in this node. "
        "If this is intentional and you are using:",
    ],
    "engine.kv_cache.none": [
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine",
        "ValueError: To serve at least one request with the model's max seq len (131072), (16.0 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (11.27 GiB).",
    ],
    "nccl.failed": [
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled cuda error",
        "[rank3]:[E1129 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST)",
    ],
    "host.shm.full": [
        "h1:168:168 [0] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment "
        "/dev/shm/nccl-cjY8K5 (size 10617216), error: No space left on device (28)",
        "h1:168:168 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-Ubz to "
        "9637892 bytes",
    ],
    "host.disk.full": [
        "OSError: [Errno 28] No space left on device: '/opt/dlami/nvme/models/x.safetensors'",
        "RuntimeError: Data processing error: I/O error: No space left on device (os error 28)",
    ],
    "model.refused": [
        "OSError: You are trying to access a gated repo.",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: x)",
        "Cannot access gated repo for url https://huggingface.co/api/models/a/b.",
        "OSError: a/b is a gated repository. Make sure to request access at https://x",
        "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://huggingface.co",
    ],
    "model.missing": [
        "OSError: /models/x is not a local folder and is not a valid model identifier listed on "
        "'https://huggingface.co/models'",
        "ValueError: Invalid repository ID or local directory specified: '/models/x'.",
        "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: x)",
    ],
    "model.unreachable": [
        "OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't "
        "find them in the cached files.",
        "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate "
        "the files on the Hub",
    ],
    "model.context.long": [
        "ValueError: User-specified max_model_len (262144) is greater than the derived "
        "max_model_len (max_position_embeddings=131072)",
    ],
    "model.heads": [
        "ValueError: Total number of attention heads (40) must be divisible by tensor parallel "
        "size (16).",
    ],
    "engine.arguments.refused": [
        "api_server.py: error: unrecognized arguments: --kv-transfer-confg",
        "api_server.py: error: argument --block-size: invalid choice: 12",
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for KVTransferConfig",
    ],
    "engine.worker.died": [
        "(EngineCore pid=1) ERROR 11-29 15:29:23 [multiproc_executor.py:381] Worker proc "
        "VllmWorker-3 died unexpectedly (exit code: -9), shutting down executor.",
        "RuntimeError: Engine core process EngineCore_0 died unexpectedly.",
        "(APIServer pid=1) ERROR 11-29 15:29:23 [core_client.py:600] Engine core proc EngineCore_0 "
        "died unexpectedly, shutting down client.",
    ],
    "engine.worker.silent": [
        "(EngineCore pid=1) INFO 11-29 15:29:23 [shm_broadcast.py:761] No available shared memory "
        "broadcast block found in 60 seconds. This typically happens when some processes are "
        "hanging or doing some time-consuming work",
    ],
    "engine.cancelled": ["RuntimeError: cancelled"],
    "engine.worker.timeout": ["TimeoutError: RPC call to sample_tokens timed out."],
    "process.crashed": [
        "!!!!!!! Segfault encountered !!!!!!!",
        "Fatal Python error: Segmentation fault",
    ],
    "port.in_use": [
        "zmq.error.ZMQError: Address already in use (addr='tcp://10.0.0.1:5600')",
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8000): "
        "address already in use",
    ],
    "port.address": [
        "zmq.error.ZMQError: Cannot assign requested address (addr='tcp://54.1.2.3:5600')",
        "zmq.error.ZMQError: No such device (addr='tcp://h2:5600')",
        "ERROR:    [Errno 99] error while attempting to bind on address ('54.1.2.3', 8100): cannot "
        "assign requested address",
        "OSError: [Errno 99] Cannot assign requested address",
    ],
    "host.oom": [
        "Nov 29 15:29:23 h1 kernel: Out of memory: Killed process 4711 (VLLM::EngineCor) "
        "total-vm:1kB",
        "[337533.314412] Memory cgroup out of memory: Killed process 23793 (VLLM::Worker_TP) "
        "total-vm:2623712kB, anon-rss:506500kB",
        "Nov 29 15:29:23 h1 systemd[1]: pdctl-decode.service: A process of this unit has been "
        "killed by the OOM killer.",
    ],
    "logs.suppressed": [
        "Nov 29 15:29:23 h1 systemd-journald[321]: Suppressed 4711 messages from "
        "pdctl-prefill.service",
    ],
    "logs.dropped": [
        "Nov 29 15:29:23 h1 rsyslogd: imuxsock: begin to drop messages due to rate-limiting",
        "Nov 29 15:29:23 h1 rsyslogd: imuxsock: 212 messages lost due to rate-limiting",
    ],
}  # fmt: skip

NEAR: dict[str, list[str]] = {
    "router.cache.miss": [EXAMPLE + "prefix cache MISS rate is high", "conv=x: cache MISSED"],
    "router.cache.hit": [EXAMPLE + "conv=c: cache HITS (age=0.0s)", "Prefix cache hit rate: 64.7%"],
    "router.prefill.done": [EXAMPLE + "Prefill done in time", EXAMPLE + "[x] Prefill done in 1s"],
    "router.handle.kept": [EXAMPLE + "conv=c: cached D blocks (none)"],
    "router.handle.sent": [EXAMPLE + "[x] conv=c: sending D's cached blocks to P"],
    "router.cache.off": [OURS + "[x] conv=c: cache OFFLINE"],
    "router.handle.settled": [OURS + "[r1] handle cmpl-1 unknown (read)"],
    "router.handle.unknown": [OURS + "[r1] handle cmpl-1 consumed (read)"],
    "router.conversation.unnamed": [EXAMPLE + "No conversation provided"],
    "router.handle.stale": [EXAMPLE + "conv=c: stale cache entry (unknown age)"],
    "router.handle.expired": [OURS + "conv=c: handle expired long ago"],
    "router.prefill.failed": [OURS + "[r1] prefill did not fail"],
    "router.decode.interrupted": [OURS + "[r1] decode in mid-answer to a question"],
    "router.alarm.prompt_mismatch": [OURS + "no ALARM prompt_mismatch: all is well"],
    "router.alarm.audit": [OURS_ERR + "ALARM audit_breach: without a request"],
    "router.alarm.other": [OURS + "the ALARM bell: rings"],
    "router.engine.down": [OURS + f"prefill {P} is up (vLLM 0.33.0, block size 16)"],
    "router.engine.up": [OURS + f"decode {D} is up"],
    "router.engine.restarted": [OURS + f"{D} was restarted"],
    "router.pair.unproven": [OURS + f"pair {P} × {D} proven: blocks move both ways"],
    "router.pair.proven": [OURS + f"pair {P} × {D} proven: nothing"],
    "router.reuse.switched": [OURS + "reuse is set"],
    "router.ttl.changed": [OURS + "handles are offered for 112 s"],
    "router.release.failed": [OURS + "release of cmpl-1 worked"],
    "router.release.late": [OURS + "12 handles were given back"],
    "router.requestlog.broken": [
        OURS_WARN + "the request log /var/log/r.jsonl goes on; 12 lines are lost"
    ],
    "router.store.failed": [OURS + "the store redis://s fails"],
    "router.store.refused": [OURS + "the store redis://s refuses nothing"],
    "router.store.reset": [OURS + "the store redis://s was started"],
    "router.store.up": [OURS + "the store redis://s is theirs"],
    "router.keys.broken": [OURS + "12 API keys read from keys"],
    "router.files.few": [OURS + "this process may open many files"],
    "router.started": [OURS + "pdctl router stops", EXAMPLE + "Ready: no decode instances"],
    "router.upstream.error": ["httpx.HTTPStatusError: something else", "httpx.ReadTimeout"],
    "router.min_tokens": ["min_tokens must be greater than or equal to 0, got -1."],
    "kv.read.declined": [WARN + "Declining remote read for chatcmpl-1 from engine decode-1."],
    "kv.load.failed": [CORE + "Failing 1 request(s) due to KV load (failure_policy=recompute)"],
    "kv.load.recovered": [CORE + "Recovered from KV load failure"],
    "kv.lease.expired": [WARN + "Releasing KV blocks for request chatcmpl-1"],
    "kv.read.invalid": [ERR + "Potentially invalid KV blocks for request cmpl-1"],
    "kv.processing.skipped": [WARN + "Skipping KV post-processing for request cmpl-1"],
    "kv.transfer.metrics": [API + "KV Transfer metrics: none"],
    "kv.bidirectional.enabled": [
        INFO + "Bidirectional KV transfer is disabled", INFO + "{'bidirectional_kv_xfer': True}"
    ],
    "kv.full": [
        API + LOAD.format(0, 0, "CPU", "87.0"), API + LOAD.format(2, 1, "CPU", "87.0"),
        API + LOAD.format(0, 1, "CPU", "7.0"),
    ],
    "engine.load": [API + "GPU KV cache usage: 10%"],
    "kv.params.invalid": [CORE + "Got invalid KVTransferParams: {}"],
    "kv.connector.missing": [CORE + "Got ec_transfer_params, but no ECConnector found."],
    "kv.layers.mismatch": ["Number of KV layers must match between the two"],
    "kv.push.bidirectional": ["Bidirectional KV transfer is not supported for NIXL push"],
    "kv.pcp.bidirectional": ["NixlConnector PCP producers"],
    "kv.role.both": [WARN + "Using kv_role='kv_both' with LMCacheConnector is deprecated"],
    "nixl.handshake.failed": [ERR + _FAILURE.format("transfer_failed", "1")],
    "nixl.notification.failed": [ERR + _FAILURE.format("transfer_failed", "1")],
    "nixl.transfer.failed": [ERR + _FAILURE.format("handshake_failed", "1")],
    "nixl.peer.disconnected": [INFO + "NIXL_ERR_REMOTE", "the client was disconnected"],
    "nixl.peer.unknown": ["metadata for remote agent loaded"],
    "nixl.peer.replaced": [INFO + "Remote engine at 127.0.0.1:5601 is the same."],
    "nixl.peer.evicted": [INFO + "Evicted stale remote engine a403"],
    "nixl.peer.invalidated": [WARN + "Local NIXL metadata for remote engine a403 was loaded"],
    "nixl.heartbeat.failed": [WARN + "Failed to send heartbeat to engine"],
    "nixl.compat.passed": [INFO + "NIXL compatibility check skipped"],
    "nixl.compat.mismatch": ["NIXL compatibility hash mismatch is not possible here"],
    "nixl.payload.unreadable": ["Failed to decode NixlThing"],
    "nixl.engine_id.mismatch": ["Remote NIXL agent engine ID mismatch?"],
    "nixl.sidechannel.silent": ["BlockingIOError: Resource temporarily unavailable"],
    "kv.blocksize.mismatch": ["Local block size 16 is fine"],
    "kv.tp.mismatch": ["Using tensor parallel size 8"],
    "kv.blocksize.none": ["No common block size for this"],
    "kv.mamba.layout": ["VLLM_SSM_CONV_STATE_LAYOUT=SD"],
    "kv.blocks.assertion": ["assert src_num_blocks"],
    "engine.spec.draft_missing": ["KeyError: 'model.layers.0'"],
    "engine.abort.assertion": ["assert req_id in self.running"],
    "engine.trim.assertion": ["assert num_decode_blocks <= 3"],
    "engine.dead": ["EngineCore encountered another"],
    "engine.start.failed": ["Engine initialization failed", "core initialization failed"],
    "supervisor.restarted": [
        OWN + "decode-0 runs as pid 7, which cannot be written down: [Errno 28] No space",
        OWN + "decode-0 ended with SIGTERM after 812 s; it is started again in a while",
    ],
    "supervisor.gave_up": [
        OWN + "decode-0 ended with status 1 after 9 s; it is started again in 8 s",
        "5 starts within 600 s did not last, so it is not started again",
    ],
    "supervisor.no_start": ["the engine cannot be started: Permission denied: /opt/engine"],
    "engine.request.invalid": ["VLLMValidationError"],
    "cpu.memory.short": ["Available memory on node 0 (9.47/12.09 GiB) on startup is enough"],
    "engine.request.error": ["Request chatcmpl-1 failed during generation"],
    "http.error": [
        'INFO:     127.0.0.1:1 - "GET /500 Internal Server Error HTTP/1.1" 200 OK',
        "the docs say: 500 Internal Server Error",
    ],
    "process.started": ["INFO:     Started server process"],
    "process.stopping": ["API server: shutdown is triggered by SIGTERM"],
    "process.traceback": ["a Traceback (most recent call last) is a list of calls"],
    "nixl.backend.up": ["Backend was instantiated", "the class was instantiated"],
    "nixl.rail": ["Created rail network"],
    "nixl.backend.unsupported": [
        "createBackend: supported backend 'UCX'",
        "nixl_cu12._bindings.nixlNotFoundError: NIXL_ERR_NOT_FOUND",
    ],
    "nixl.not_found": ["NIXL_ERR_NOT_F"],
    "nixl.param.invalid": ["NIXL_ERR_INVALID", "getConnInfo: NIXL_ERR_INVALID_PARAM"],
    "nixl.version.old": ["NIXL >= 1.5.0 is installed"],
    "nixl.missing": [INFO + "NIXL is available"],
    "nixl.backend.error": ["NIXL_ERR_BACK"],
    "nixl.backend.absent": [
        "NIXL_ERR_INVALID",
        "nixl_cu12._bindings.nixlInvalidParamError: NIXL_ERR_INVALID_PARAM",
    ],
    "ucx.qp.failed": ["mlx5dv_devx_obj_modify(opcode=0x503) worked", "it failed to modify to RTR"],
    "ucx.interface.gone": ["failed to get the index for veth26733"],
    "ucx.endpoint.timeout": ["UCX AM send failed"],
    "ucx.contexts.exhausted": ["mlx5dv_devx_alloc_ua"],
    "ucx.cuda_ipc.off": ["nvlinks detected"],
    "ucx.cuda.missing": ["transports 'cuda_copy' are available"],
    "ucx.device.missing": ["it is not available, please use one or more of these"],
    "efa.memlock": ["Libfabric error: (-1) no"],
    "efa.address.refused": ["EFA internal error: (411) no"],
    "efa.register.failed": [
        "Unable to register MR: try again",
        "fi_mr_reg failed on rail 2: Cannot allocate memory (buffer=0xe15, length=1048576)",
    ],
    "efa.peer_memory.missing": ["Failed to register CUDA buffer"],
    "efa.fork": ["A process has executed an operation"],
    "gpu.memory.short": ["Free memory on device cuda:0 (70.1/79.1 GiB) is enough"],
    "gpu.oom": ["CUDA is out of reach", "CUDA error: an illegal memory access was encountered"],
    "gpu.driver.old": [
        INFO + "the NVIDIA driver on your system is 580.126.16",
        "CUDA error: out of memory",
    ],
    "gpu.fabric.down": ["Unexpected error from cudaGetDeviceCount(). Error 100: no device"],
    "gpu.error": [
        "RuntimeError: CUDA error: out of memory", "CUDA error: CUDA driver version is insufficient"
    ],
    "gpu.xid": ["NVRM: Xid (PCI:0000:59:00) is explained elsewhere"],
    "gpu.count.short": ["3 is larger than the number of available GPUs?"],
    "engine.kv_cache.none": [INFO + "Available KV cache memory: 11.27 GiB"],
    "nccl.failed": [INFO + "vLLM is using nccl==2.29.7", "Watchdog caught collective"],
    "host.shm.full": ["while creating shared memory segment", "failed to extend /dev/x"],
    "host.disk.full": ["No space left on", "Error while creating shared memory segment /dev/shm/n"],
    "model.refused": ["401 Client", 'INFO:     127.0.0.1:1 - "GET / HTTP/1.1" 401 Unauthorized'],
    "model.missing": ["is not a valid model identifier"],
    "model.unreachable": ["We couldn't connect to the server", "LocalEntryNotFoundError"],
    "model.context.long": ["max_model_len (1) is greater than that"],
    "model.heads": ["tp_size must be divisible by tensor parallel size"],
    "engine.arguments.refused": [
        "error: unrecognized", "pydantic.ValidationError: 1 validation error for ChatRequest"
    ],
    "engine.worker.died": [
        "Worker proc VllmWorker-3 died", "the client died unexpectedly",
        CORE + "Worker proc VllmWorker-0 died unexpectedly (exit code: 0), shutting down executor.",
    ],
    "engine.worker.silent": ["the text: No available shared memory broadcast block found in 60 s"],
    "engine.cancelled": ["RuntimeError: cancelled by the user"],
    "engine.worker.timeout": ["RPC call to sample_tokens"],
    "process.crashed": ["Segfault encounters", "Fatal Python: no"],
    "efa.provider.none": [
        "fi_getinfo: -61", INFO + "Topology discovery done", "fi_getinfo fails"
    ],
    "efa.tcp": ["I1129 15:28:57.1 1 libfabric_topology.cpp:142] Discovered 16 EFA devices"],
    "efa.rdma_read.missing": ["the EFA device has rdma-read capability"],
    "efa.zone": ["NCCL WARN Call to ibv_create_ah failed with error No such device"],
    "efa.rails": ["Rail count mismatch"],
    "efa.peer.unreachable": [
        "E1129 15:28:57.1 1 r.cpp:7] CQ read failed on rail 3 with error: x prov_errno: 1 len: 15",
        "Handshake from peer 'decode-1' received",
    ],
    "efa.transfer.failed": [
        "E1129 15:28:57.1 1 r.cpp:7] CQ read failed on rail 3 with error: x prov_errno: 15 len: 0",
        "E1129 15:28:57.1 1 r.cpp:7] CQ read failed on rail 3 with error: x prov_errno: 7 len: 0",
    ],
    "kv.layout.mismatch": [INFO + "Heterogeneous TP expects", "Packed KV block rows are equal"],
    "port.in_use": [
        "the address is in use already",
        # NCCL takes the next port by itself.
        "h1:4711:4711 [0] misc/socket.cc:500 NCCL WARN Call to bind failed: Address already in use",
    ],
    "port.address": ["Cannot assign", "zmq.error.ZMQError: No such device"],
    "host.oom": ["kernel: Memory cgroup out of memory: see above"],
    "logs.suppressed": ["Nov 29 15:29:23 h1 app[1]: He Suppressed 12 messages from her"],
    "logs.dropped": ["requests lost due to rate-limiting"],
}  # fmt: skip
