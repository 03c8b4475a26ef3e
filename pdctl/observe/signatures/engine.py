"""Lines of vLLM's engines and of NIXL about KV on its way."""

from pdctl.base.fix import Fix
from pdctl.observe.signatures.machine import NO_START
from pdctl.observe.signatures.model import (
    ANYONE,
    COUNT,
    ENGINES,
    NOTHING,
    NUMBER,
    Role,
    Signature,
)

_P: tuple[Role, ...] = ("prefill",)
_D: tuple[Role, ...] = ("decode",)
_RAN = "run: recorded on vLLM 0.32.0"
_READ = "read: vLLM 0.32.0"
_RESTART = Fix(
    "start the pair again, so that each engine gets a new id", ("pdctl down", "pdctl up")
)

_HANDSHAKE = (
    "nixl.compat.mismatch",
    "nixl.engine_id.mismatch",
    "nixl.sidechannel.silent",
    "nixl.payload.unreadable",
    "kv.tp.mismatch",
    "kv.layout.mismatch",
    "kv.blocksize.mismatch",
    "kv.layers.mismatch",
)
"""Why engines do not take each other."""
_EFA = ("efa.peer.unreachable", "efa.address.refused", "efa.transfer.failed")
_DEATHS = (
    "gpu.oom",
    "gpu.xid",
    "gpu.error",
    "nccl.failed",
    "host.oom",
    "host.shm.full",
    "host.disk.full",
    "process.crashed",
    "engine.worker.timeout",
    "engine.worker.died",
)
"""What ends an engine that ran, or one that starts."""

ENGINE: tuple[Signature, ...] = (
    Signature(
        id="kv.read.declined",
        title="prefill declined to read blocks that had expired",
        literals=("Declining expired remote read for ",),
        pattern=r"^Declining expired remote read for (?P<request>\S+) from engine "
        r"(?P<engine>\S+?)\.?(?:\s|$)",
        severity="degrade",
        roles=_P,
        versions="vLLM 0.27 and later; older ones read garbage in silence",
        meaning="A turn came later than decode's TTL less 5 s, and the router attached its handle "
        "all the same. With `kv_load_failure_policy: fail` the request fails with HTTP 500, with "
        "`recompute` it hangs for ever; it is not computed from the beginning by itself.",
        fix=Fix(
            "keep the router's TTL below the engine's (`router.ttl`; pdctl's default is safe) or "
            "raise `kv.decoder_ttl`; a router that tries again without the handle hides it from "
            "clients"
        ),
        source=f"{_RAN}; FACTS T1; vllm#47021",
    ),
    Signature(
        id="kv.load.failed",
        title="requests failed because their KV could not be loaded",
        literals=(" request(s) due to KV load failure (failure_policy=fail",),
        pattern=r"^Failing (?P<requests>\d+) request\(s\) due to KV load failure "
        r"\(failure_policy=fail(?:, (?P<tokens>\d+) tokens affected)?",
        severity="degrade",
        meaning="They end with HTTP 500. pdctl's router does such a turn again without the handle; "
        "others pass the 500 on.",
        fix=Fix(
            "mend the cause, which stands before it in the same log; leave the policy at `fail`: "
            "with `recompute` such requests hang"
        ),
        source=f"{_RAN}; FACTS T1; upstream bug list 50",
        follows=(
            "kv.read.declined",
            "nixl.peer.disconnected",
            "nixl.transfer.failed",
            "nixl.backend.error",
            "nixl.handshake.failed",
            *_HANDSHAKE,
        ),
    ),
    Signature(
        id="kv.load.recovered",
        title="requests wait to be computed again after a failed load",
        literals=("Recovered from KV load failure: ",),
        pattern=r"^Recovered from KV load failure: (?P<requests>\d+) request\(s\) rescheduled"
        r"(?: \((?P<tokens>\d+) tokens affected\))?",
        severity="degrade",
        meaning="The policy is `recompute`. On vLLM 0.32 and 0.33 a request whose read was "
        "declined was never answered after this line, whatever it says.",
        fix=Fix("set `kv.load_failure_policy: fail` on prefill", ("pdctl up",)),
        source="read: vLLM 0.32.0; what follows was run: FACTS T1",
        follows=("kv.read.declined", "nixl.peer.disconnected", "nixl.transfer.failed"),
    ),
    Signature(
        id="kv.lease.expired",
        title="kept blocks were given up, nobody came for them",
        literals=("Releasing expired KV blocks for request ",),
        pattern=r"^Releasing expired KV blocks for request (?P<request>\S+) which were retrieved "
        r"by (?P<readers>\d+) (?:remote|decode) worker",
        severity="note",
        meaning="On decode, how every conversation ends: nobody came back within the TTL. On "
        "prefill, decode did not fetch the blocks within `kv_lease_duration`: it was too busy, or "
        "the turn was given up.",
        fix=Fix(
            "nothing on decode; often on prefill: look for waiting requests on decode, raise "
            "`kv.lease_duration`"
        ),
        source=f"{_RAN}; upstream bug list 3",
    ),
    Signature(
        id="kv.read.invalid",
        title="blocks were read that may have been freed",
        literals=("Potentially invalid KV blocks for unrecognized request ",),
        pattern=r"^Potentially invalid KV blocks for unrecognized request (?P<request>\S+) were "
        r"retrieved by",
        severity="note",
        meaning="An engine was told of a read of a request it no longer knows. Alone it proves "
        "nothing: vLLM also writes it when a client without streaming left, where nothing was "
        "read. It is real where a handle was used twice, or after the lease; then the answer may "
        "be wrong. `kv.read.after_release` is the sure case.",
        fix=Fix(
            "see whether the same request was released before (`kv.lease.expired`), and whether "
            "the router uses a handle once only"
        ),
        source="run: vLLM 0.32.0, both the true and the false case; FACTS T5; aibrix#1772",
    ),
    Signature(
        id="kv.read.after_release",
        title="blocks were read after they had been freed",
        literals=(),
        pattern="",
        severity="block",
        meaning="The engine gave up the blocks of a request and was told afterwards that they were "
        "read. Whoever read them got what stood there by then: the answer may be wrong, with HTTP "
        "200.",
        fix=Fix(
            "raise `kv.lease_duration` (on prefill) or keep the router's TTL below "
            "`kv.decoder_ttl` (on decode); let less wait on decode"
        ),
        source="concluded from `kv.lease.expired` and `kv.read.invalid` of one request; "
        "aws-do-eks#84 (8 of 42 requests)",
        derived=True,
    ),
    Signature(
        id="kv.processing.skipped",
        title="a failed read was not used",
        literals=("Skipping KV post-processing for failed request ",),
        pattern=r"^Skipping KV post-processing for failed request (?P<request>\S+)",
        severity="note",
        versions="vLLM 0.24 and later",
        meaning="The engine did not touch what a failed read left. A consequence, not a cause.",
        fix=NOTHING,
        source=_RAN,
        follows=("kv.read.declined", "nixl.peer.disconnected", "nixl.transfer.failed"),
    ),
    Signature(
        id="kv.transfer.metrics",
        title="KV was moved",
        literals=("KV Transfer metrics: ",),
        pattern=rf"^KV Transfer metrics: Num successful transfers=(?P<transfers>{COUNT}), "
        rf"Avg xfer time \(ms\)=(?P<avg_ms>{NUMBER}), P90 xfer time \(ms\)=(?P<p90_ms>{NUMBER})"
        rf"(?:.*?Avg MB per transfer=(?P<avg_mb>{NUMBER}))?"
        rf"(?:.*?Throughput \(MB/s\)=(?P<mb_per_s>{NUMBER}))?"
        rf"(?:.*?Num failed transfers=(?P<failed>{COUNT}))?"
        rf"(?:.*?Num KV expired reqs=(?P<expired>{COUNT}))?",
        severity="note",
        good=True,
        meaning="The engine that reads writes it: on prefill they are reads from decode, the reuse "
        "itself; on decode they are reads from prefill.",
        fix=NOTHING,
        source=_RAN,
    ),
    Signature(
        id="kv.bidirectional.enabled",
        title="reuse is on in this engine",
        literals=("Bidirectional KV transfer is enabled and the kv recompute threshold is ",),
        pattern=r"^Bidirectional KV transfer is enabled and the kv recompute threshold is set to "
        r"(?P<threshold>\d+) tokens(?:\.\s?KV blocks on D are released after a TTL of "
        r"(?P<ttl>\d+) seconds)?",
        severity="note",
        good=True,
        versions="vLLM 0.21 and later (without the TTL there); not with a threshold of 0",
        meaning="Both sides must write it. That it is missing proves nothing where the threshold "
        "is 0.",
        fix=NOTHING,
        source=_RAN,
    ),
    Signature(
        id="kv.full",
        title="requests wait while kept blocks fill the engine",
        literals=("KV cache usage: ",),
        pattern=r"^Engine (?P<engine>\d+): .*Running: (?P<running>0) reqs, "
        r"Waiting: (?P<waiting>[1-9]\d{0,14}) reqs.*KV cache usage: "
        r"(?P<usage>(?:[89]\d|100)(?:\.\d+)?)%",
        severity="degrade",
        meaning="Nothing runs, requests wait, and the KV cache is as good as full: idle "
        "conversations pin it until their TTL. A new request waits that long.",
        fix=Fix(
            "lower `kv.decoder_ttl`, or use `router.kind: pdctl`, which gives blocks back under "
            "pressure"
        ),
        source="run: vLLM 0.32.0; FACTS T6",
    ),
    Signature(
        id="engine.load",
        title="load of an engine",
        literals=("KV cache usage: ",),
        pattern=rf"^Engine (?P<engine>\d+): .*Running: (?P<running>{COUNT}) reqs, "
        rf"Waiting: (?P<waiting>{COUNT}) reqs.*KV cache usage: (?P<usage>{NUMBER})%",
        severity="note",
        good=True,
        meaning="Requests that run and wait, and how full the KV cache is, every ten seconds.",
        fix=NOTHING,
        source=_RAN,
    ),
    Signature(
        id="kv.params.invalid",
        title="a handle lacks fields, so KV is not moved",
        literals=("Got invalid KVTransferParams: ",),
        pattern=r"^Got invalid KVTransferParams: (?P<params>.*?)\. This request will not utilize "
        r"KVTransfer",
        severity="degrade",
        meaning="A router dropped a field of `kv_transfer_params` between the engines; the request "
        "is computed from the beginning.",
        fix=Fix("pass the parameters on as they are, unknown fields too"),
        source=f"{_READ}; upstream bug list 46",
    ),
    Signature(
        id="kv.connector.missing",
        title="the engine moves no KV: it was started without a connector",
        literals=("Got kv_transfer_params, but no KVConnector found",),
        pattern=r"^Got kv_transfer_params, but no KVConnector found",
        severity="block",
        meaning="Requests carry handles, and the engine was started without "
        "`--kv-transfer-config`: everything is computed where it lands.",
        fix=Fix("start it as rendered", ("pdctl render", "pdctl up")),
        source=f"{_READ}; upstream bug list 47",
    ),
    Signature(
        id="kv.layers.mismatch",
        title="the engines have different numbers of KV layers",
        literals=("Number of KV layers must match between ",),
        pattern=r"Number of KV layers must match between (?:prefill and decode|producer and "
        r"consumer)",
        severity="block",
        meaning="Mostly speculative decoding on one side only. No KV moves.",
        fix=Fix("use the same speculative configuration on both sides (`model.speculative`)"),
        source=f"{_READ}; vllm#48221",
    ),
    Signature(
        id="kv.push.bidirectional",
        title="the push connector cannot do reuse",
        literals=("Bidirectional KV transfer is not supported for NIXL push connector",),
        pattern=r"Bidirectional KV transfer is not supported for NIXL push connector",
        severity="block",
        versions="vLLM 0.27 and later",
        meaning="The engine does not start.",
        fix=Fix("use `NixlConnector`"),
        source=f"{_READ}; vllm#46473",
    ),
    Signature(
        id="kv.pcp.bidirectional",
        title="prefill context parallelism cannot be combined with reuse",
        literals=("NixlConnector PCP producers do not support bidirectional KV transfer",),
        pattern=r"NixlConnector PCP producers do not support bidirectional KV transfer",
        severity="block",
        versions="vLLM 0.29 and later",
        meaning="The engine does not start.",
        fix=Fix("leave prefill context parallelism at 1, or `kv.bidirectional: false`"),
        source=_READ,
        roles=_P,
    ),
    Signature(
        id="kv.role.both",
        title="the role `kv_both` is old",
        literals=("kv_role='kv_both' with NixlConnector is deprecated",),
        pattern=r"^Using kv_role='kv_both' with NixlConnector is deprecated",
        severity="note",
        versions="vLLM 0.24 and later",
        meaning="It works still, and a later version will refuse it.",
        fix=Fix("`kv_producer` on prefill, `kv_consumer` on decode, as `pdctl render` writes"),
        source=f"{_READ}; vllm#43874",
    ),
    Signature(
        id="nixl.handshake.failed",
        title="the engines could not make contact",
        literals=("NIXL transfer failure: ",),
        pattern=r"^NIXL transfer failure: (?P<type>(?:push_|push_reg_)?handshake_(?:setup_)?failed)"
        r"\b.*?(?:'remote_host': '(?P<host>[^']*)', 'remote_port': (?P<port>\d+)|$)",
        severity="block",
        generic=True,
        meaning="No KV moves between them: the side channel is not reached, or they refuse each "
        "other.",
        fix=Fix(
            "look at the exception behind it; see that the side channel's address and port are "
            "reached from the other host, and that both were started from one configuration",
            ("pdctl doctor",),
        ),
        source=f"{_READ}; upstream bug list 16 to 18",
        follows=_HANDSHAKE,
    ),
    Signature(
        id="nixl.notification.failed",
        title="the other engine could not be told that its blocks are free",
        literals=("NIXL transfer failure: ",),
        pattern=r"^NIXL transfer failure: (?P<type>notification_failed|push_reg_notif_failed)\b",
        severity="degrade",
        generic=True,
        meaning="The other side keeps the blocks until their lease or TTL ends. Often the other "
        "side is gone.",
        fix=Fix("see whether the other engine was restarted or died"),
        source="run: vLLM 0.32.0",
        follows=("nixl.peer.disconnected", "engine.dead"),
    ),
    Signature(
        id="nixl.transfer.failed",
        title="blocks could not be read from the other engine",
        literals=("NIXL transfer failure: ",),
        pattern=r"^NIXL transfer failure: (?P<type>\w+)\b.*?"
        r"(?:'request_id': '(?P<request>[^']*)'|$)",
        severity="degrade",
        generic=True,
        meaning="The request fails (`fail`) or waits (`recompute`). The exception behind it says "
        "why.",
        fix=Fix("see whether the other engine was restarted; then the network", ("pdctl doctor",)),
        source="run: vLLM 0.32.0; upstream bug list, the carrier of all of NIXL's failures",
        follows=("nixl.peer.disconnected", *_EFA, "engine.dead"),
    ),
    Signature(
        id="nixl.peer.disconnected",
        title="the other engine is gone, or was restarted under the same id",
        literals=("NIXL_ERR_REMOTE_DISCONNECT", "nixlRemoteDisconnectError", "' was disconnected"),
        pattern=r"NIXL_ERR_REMOTE_DISCONNECT|nixlRemoteDisconnectError"
        r"|remote agent '[^']*' was disconnected",
        severity="degrade",
        meaning="One such line is a restart. If they go on, `engine_id` is fixed in the "
        "configuration: the engine keeps the dead one's agent under that id, and every later read "
        "fails until it is restarted itself. UCX over EFA does it too.",
        fix=Fix(
            "never set `engine_id` (pdctl makes a new one at every start); to mend a pair that is "
            "in this state, restart the engine that writes the line; over EFA use "
            "`kv.backends: [LIBFABRIC]`",
            ("pdctl down", "pdctl up"),
        ),
        source="run: vLLM 0.32.0; FACTS T2; vllm#49238, nixl#1983",
        follows=("engine.dead", "efa.peer.unreachable"),
    ),
    Signature(
        id="nixl.peer.unknown",
        title="NIXL does not know the other engine",
        literals=("metadata for remote agent ",),
        pattern=r"metadata for remote agent '?(?P<agent>[^']*)'? not found",
        severity="degrade",
        meaning="The connection was lost and what was known of the peer was dropped; seen with UCX "
        "over EFA.",
        fix=Fix(
            "over EFA use `kv.backends: [LIBFABRIC]`; else restart the pair", _RESTART.commands
        ),
        source="nixl#1983",
        follows=("nixl.peer.disconnected",),
    ),
    Signature(
        id="nixl.peer.replaced",
        title="the other engine was restarted, and this one noticed",
        literals=("Remote engine at ",),
        pattern=r"^Remote engine at (?P<address>\S+) changed from (?P<old>\S+) to "
        r"(?P<new>\S+?)\.?$",
        severity="note",
        versions="vLLM 0.31 and later",
        meaning="As it should be after a restart: new turns go to the new engine.",
        fix=Fix("nothing, unless nobody restarted it"),
        source=_RAN,
    ),
    Signature(
        id="nixl.peer.evicted",
        title="an engine that was idle for long was forgotten",
        literals=("Evicted stale remote engine ",),
        pattern=r"^Evicted stale remote engine (?P<engine>\S+) \(inactive for (?P<seconds>[\d.]+)s",
        severity="note",
        versions="vLLM 0.24 and later",
        meaning="After `engine_ttl` without a transfer. The next one shakes hands again.",
        fix=NOTHING,
        source=f"{_READ}; upstream bug list 49",
    ),
    Signature(
        id="nixl.peer.invalidated",
        title="what was known of the other engine became invalid",
        literals=("Local NIXL metadata for remote engine ",),
        pattern=r"^Local NIXL metadata for remote engine (?P<engine>\S+) was invalidated",
        severity="degrade",
        versions="vLLM 0.31 and later",
        meaning="The connection broke; the engine shakes hands anew by itself, and reads fail "
        "until then.",
        fix=Fix("see whether the other engine was restarted or the network fails"),
        source=_READ,
        follows=("nixl.peer.disconnected", "engine.dead"),
    ),
    Signature(
        id="nixl.heartbeat.failed",
        title="a lease could not be renewed",
        literals=("Failed to send heartbeat to engine",),
        pattern=r"^Failed to send heartbeat to engine (?P<engine>\S+)",
        severity="degrade",
        roles=_D,
        versions="vLLM 0.24 and later",
        meaning="Decode waits for blocks that prefill may give up. Mostly prefill is gone.",
        fix=Fix("see whether prefill was restarted or died", ("pdctl status",)),
        source=f"{_READ}; upstream bug list 49",
        follows=("nixl.peer.disconnected", "engine.dead"),
    ),
    Signature(
        id="nixl.compat.passed",
        title="the engines shook hands",
        literals=("NIXL compatibility check passed",),
        pattern=r"^NIXL compatibility check passed \(hash: (?P<hash>\w+)\)",
        severity="note",
        good=True,
        meaning="Version, model string, dtype, attention backend are equal. Weights, block size "
        "and KV layout are not part of it.",
        fix=NOTHING,
        source=_RAN,
    ),
    Signature(
        id="nixl.compat.mismatch",
        title="the engines refuse each other",
        literals=("NIXL compatibility hash mismatch",),
        pattern=r"NIXL compatibility hash mismatch\. Local: (?P<local>\w+), "
        r"Remote: (?P<remote>\w+)",
        severity="block",
        meaning="vLLM's version, the model string, dtype, attention backend or speculative "
        "configuration differ. No KV moves.",
        fix=Fix(
            "start both from one pd.yaml; never set `enforce_handshake_compat: false`",
            ("pdctl render", "pdctl up"),
        ),
        source=f"{_READ}; vllm#29503, vllm#49230",
    ),
    Signature(
        id="nixl.payload.unreadable",
        title="the engines speak different versions of the handshake",
        literals=("Failed to decode Nixl",),
        pattern=r"Failed to decode Nixl(?P<what>HandshakePayload|AgentMetadata)",
        severity="block",
        meaning="Their vLLM versions differ. No KV moves.",
        fix=Fix("install the same vLLM on all hosts (`engine.vllm`)", ("pdctl up",)),
        source=_READ,
    ),
    Signature(
        id="nixl.engine_id.mismatch",
        title="the handshake reached another engine than it was meant for",
        literals=("Remote NIXL agent engine ID mismatch",),
        pattern=r"Remote NIXL agent engine ID mismatch\. Expected (?P<expected>[^,]*), ?"
        r"received (?P<received>[^.\s]*)",
        severity="block",
        meaning="Mostly `VLLM_NIXL_SIDE_CHANNEL_HOST` is not set on the other host, so that it "
        "gives `localhost` as its address and this engine reaches itself.",
        fix=Fix(
            "set it to an address that the other host reaches, as `pdctl render` writes it",
            ("pdctl render",),
        ),
        source=f"{_READ}; vllm#27083",
    ),
    Signature(
        id="nixl.sidechannel.silent",
        title="the other engine's side channel does not answer",
        literals=("Resource temporarily unavailable",),
        pattern=r"zmq\.error\.Again: Resource temporarily unavailable",
        severity="block",
        meaning="A handshake waits 5 s for the side channel's port, then fails. No KV moves.",
        fix=Fix(
            "open the side channel's port between the hosts (it is not the HTTP port), and see "
            "that the other engine lives",
            ("pdctl doctor",),
        ),
        source="read: vLLM 0.32.0 (RCVTIMEO 5000 ms); vllm#41863",
        follows=("engine.dead", "port.address"),
    ),
    Signature(
        id="kv.blocksize.mismatch",
        title="the engines have different block sizes",
        literals=("Local block size ", "Not pairing remote "),
        pattern=r"Local block size (?P<local>\d+) is not divisible by remote block size "
        r"(?P<remote>\d+)|Not pairing remote \d+-token blocks with local",
        severity="block",
        meaning="Single requests fail, or the wrong blocks are read, and every health check is "
        "green.",
        fix=Fix("set `model.block_size`, which goes to both sides", ("pdctl up",)),
        source=f"{_READ}; vllm#42895",
    ),
    Signature(
        id="kv.tp.mismatch",
        title="the engines' tensor parallel sizes do not go together",
        literals=(" tensor parallel size ",),
        pattern=r"(?:Local|Remote) tensor parallel size (?P<one>\d+) is not divisible by "
        r"(?:remote|local) tensor parallel size (?P<other>\d+)",
        severity="block",
        meaning="No KV moves.",
        fix=Fix("make them equal, or one a multiple of the other (`tensor_parallel_size`)"),
        source=f"{_READ}; vllm#43523",
    ),
    Signature(
        id="kv.layout.mismatch",
        title="the engines lay their KV blocks out differently",
        literals=(
            "Heterogeneous TP expects same kv_cache_layout",
            "Heterogeneous TP head-dimension splitting",
            "Packed KV block rows differ",
        ),
        pattern=r"Heterogeneous TP expects same kv_cache_layout(?: \(local (?P<local>\w+), "
        r"remote (?P<remote>\w+)\))?|Heterogeneous TP head-dimension splitting requires"
        r"|Packed KV block rows differ between P and D",
        severity="block",
        meaning="The layout is not part of the handshake's hash. With different tensor parallel "
        "sizes both need the one whose heads are contiguous.",
        fix=Fix(
            "use the same `tensor_parallel_size` and attention backend on both sides, or set "
            "`VLLM_KV_CACHE_LAYOUT` alike in `model.env`",
            ("pdctl render", "pdctl up"),
        ),
        source="read: vLLM 0.33.0",
    ),
    Signature(
        id="kv.blocksize.none",
        title="the model's layers have no block size in common",
        literals=("No common block size for ",),
        pattern=r"No common block size for (?P<size>\d+)",
        severity="block",
        meaning="A hybrid model whose KV groups this connector cannot move.",
        fix=Fix(
            "use a vLLM version that supports the model with NixlConnector, or do not split it"
        ),
        source="vllm#50714",
    ),
    Signature(
        id="kv.mamba.layout",
        title="a Mamba hybrid needs another state layout",
        literals=("VLLM_SSM_CONV_STATE_LAYOUT=DS",),
        pattern=r"VLLM_SSM_CONV_STATE_LAYOUT=DS",
        severity="block",
        meaning="The engine does not start.",
        fix=Fix("set `env: {VLLM_SSM_CONV_STATE_LAYOUT: DS}` for both roles"),
        source=_READ,
    ),
    Signature(
        id="kv.blocks.assertion",
        title="the engines have different numbers of KV blocks",
        literals=("assert dst_num_blocks",),
        pattern=r"assert dst_num_blocks",
        severity="block",
        versions="old ones",
        meaning="Old versions want equal numbers.",
        fix=Fix("upgrade vLLM, or give both the same memory fraction"),
        source="vllm#23086, vllm#19338",
    ),
    Signature(
        id="engine.spec.draft_missing",
        title="the draft model's KV was not moved",
        literals=("KeyError: 'draft_model",),
        pattern=r"KeyError: 'draft_model",
        severity="block",
        meaning="Speculative decoding with a draft or MTP head on one side only.",
        fix=Fix("use the same speculative configuration on both sides, or none"),
        source="vllm#54926",
    ),
    Signature(
        id="engine.abort.assertion",
        title="the engine died on an abort",
        literals=("assert req_id in self.requests",),
        pattern=r"assert req_id in self\.requests",
        severity="block",
        meaning="A request was aborted while a receive and a send of it were pending, which reuse "
        "makes common. The engine is gone. Not mended up to 0.33.0.",
        fix=Fix(
            "start it again; do not cut requests off on decode (`router.kind: pdctl` lets a leg "
            "with a handle end by itself)",
            ("pdctl up",),
        ),
        source="read: vLLM 0.33.0; vllm#46240, vllm#43226, vllm#48616, vllm#48821",
    ),
    Signature(
        id="engine.trim.assertion",
        title="the engine died on a handle with too few blocks",
        literals=("assert num_decode_blocks ",),
        pattern=r"assert num_decode_blocks <= len\(prefill_group\)",
        severity="block",
        meaning="A router cut the block list shorter than `remote_num_tokens` needs.",
        fix=Fix("start it again; use a router that cuts both by the same count", ("pdctl up",)),
        source="run: vLLM 0.32.0",
    ),
    Signature(
        id="engine.dead",
        title="the engine died",
        literals=("EngineCore encountered a",),
        pattern=r"EngineCore encountered an? (?:issue|fatal error)",
        severity="block",
        generic=True,
        roles=ENGINES,
        meaning="Its core ended with an exception, which stands above in the log. The server "
        "answers 500 and ends.",
        fix=Fix("look at the exception, then start it again", ("pdctl status", "pdctl up")),
        source="run: vLLM 0.32.0; upstream bug list 14, 17",
        follows=("engine.abort.assertion", "engine.trim.assertion", *_DEATHS),
    ),
    Signature(
        id="engine.start.failed",
        title="the engine did not start",
        literals=("Engine core initialization failed", "WorkerProc initialization failed"),
        pattern=r"(?:Engine core|WorkerProc) initialization failed",
        severity="block",
        generic=True,
        meaning="A process under the server ended with an exception, which stands above it.",
        fix=Fix("look at the exception, mend it, start it again", ("pdctl up",)),
        source="run: vLLM 0.32.0",
        follows=(
            *NO_START,
            *_DEATHS,
            "process.traceback",
        ),
    ),
    Signature(
        id="engine.request.invalid",
        title="a client's request was refused",
        literals=("VLLMValidationError: ",),
        pattern=r"VLLMValidationError: (?P<why>.*)$",
        severity="note",
        meaning="The request itself is wrong. vLLM logs a traceback for some of these; nothing is "
        "wrong with the engine.",
        fix=Fix("mend the request"),
        source="run: vLLM 0.32.0",
    ),
    Signature(
        id="engine.request.error",
        title="a request failed inside the engine",
        literals=(" failed with an internal error during generation",),
        pattern=r"^Request (?P<request>\S+) failed with an internal error during generation",
        severity="degrade",
        meaning="The client of that engine gets a 500.",
        fix=Fix("look for the cause just above in the same log"),
        source=_RAN,
        follows=(
            "kv.load.failed",
            "kv.read.declined",
            "nixl.peer.disconnected",
            "nixl.transfer.failed",
            "engine.dead",
        ),
    ),
    Signature(
        id="http.error",
        title="a server answered 500",
        literals=("500 Internal Server Error",),
        pattern=r'^\S+:\d+ - "(?P<method>[A-Z]+) (?P<path>\S+) HTTP/[\d.]+" (?P<status>500)\b',
        severity="degrade",
        roles=ANYONE,
        meaning="A request failed.",
        fix=Fix("look for the cause just above in the same log"),
        source=_RAN,
        follows=(
            "kv.load.failed",
            "engine.request.error",
            "router.upstream.error",
            "engine.dead",
            "process.traceback",
        ),
    ),
    Signature(
        id="process.started",
        title="a server process was started",
        literals=("Started server process [",),
        pattern=r"^Started server process \[(?P<pid>\d+)\]",
        severity="note",
        good=True,
        roles=ANYONE,
        meaning="What stands before it in the log is of another process.",
        fix=NOTHING,
        source=_RAN,
    ),
    Signature(
        id="process.stopping",
        title="a server was told to end",
        literals=("API server: shutdown triggered",),
        pattern=r"^\[shutdown\] API server: shutdown triggered",
        severity="note",
        good=True,
        meaning="Errors that vLLM writes after it are of its ending, and are not counted.",
        fix=NOTHING,
        source=_RAN,
    ),
    Signature(
        id="process.traceback",
        title="an exception",
        literals=("Traceback (most recent call last)",),
        pattern=r"^Traceback \(most recent call last\):?",
        severity="degrade",
        roles=ANYONE,
        generic=True,
        meaning="The last line of it says what happened.",
        fix=Fix("read the exception; `--all` shows the whole of it"),
        source="Python's own; one event however many lines it has",
    ),
)
