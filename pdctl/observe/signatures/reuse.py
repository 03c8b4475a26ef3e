"""Lines of a multi-turn router: pdctl's own, and upstream's example proxy."""

from pdctl.base.fix import Fix
from pdctl.observe.signatures.model import ENGINES, NOTHING, ROUTER_LITERAL, Role, Signature

_ROUTER: tuple[Role, ...] = ("router",)
_OURS = "pdctl"
_BOTH = "pdctl, and upstream's example proxy"
_EXAMPLE = "upstream's example proxy"
_LINE = r"^\[(?P<request>[^\]]*)\] conv=(?P<conversation>.*): cache "
_OUR_TAIL = (
    r"(?: \((?P<reason>\w+), reused=(?P<reused>\d+), prompt=(?P<prompt>\d+|None)"
    r", retained=(?P<retained>\w+)(?:, retries=(?P<retries>[\w,]+))?\)"
    r"(?:\. Prefill done in (?P<ms>\d{1,15})ms)?)?$"
)

REUSE: tuple[Signature, ...] = (
    Signature(
        id="router.cache.miss",
        title="a turn was computed from the beginning",
        literals=(": cache MISS", ROUTER_LITERAL),
        pattern=_LINE + "MISS" + _OUR_TAIL,
        severity="note",
        roles=_ROUTER,
        versions=_BOTH,
        meaning="Of a first turn that is as it should be: nothing is kept yet. Whether it should "
        "have been a HIT is told by `router.cache.lost`; a turn that came after the TTL, or whose "
        "history was changed, is neither.",
        fix=Fix(
            "nothing for first turns; if every turn is a MISS, prove where it ends",
            ("pdctl verify", "pdctl doctor"),
        ),
        source="read: disagg_proxy_multiturn.py of vLLM 0.33.0; pdctl/router/server.py",
    ),
    Signature(
        id="router.cache.hit",
        title="a turn reuses what decode kept",
        literals=(": cache HIT", ROUTER_LITERAL),
        pattern=r"^(?:\[(?P<request>[^\]]*)\] )?conv=(?P<conversation>.*): cache HIT"
        r"(?: \((?:age=(?P<age>[\d.]+)s|(?P<reason>\w+), reused=(?P<reused>\d+),"
        r" prompt=(?P<prompt>\d+|None), retained=(?P<retained>\w+)"
        r"(?:, retries=(?P<retries>[\w,]+))?)\)(?:\. Prefill done in (?P<ms>\d{1,15})ms)?)?$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_BOTH,
        meaning="pdctl's router writes it when prefill pulled blocks. The example proxy writes it "
        "when it attaches a handle, before anybody knows whether the read will work.",
        fix=NOTHING,
        source="read: disagg_proxy_multiturn.py of vLLM 0.33.0; pdctl/router/server.py",
    ),
    Signature(
        id="router.prefill.done",
        title="prefill answered",
        literals=("Prefill done in ", ROUTER_LITERAL),
        pattern=r"^\[(?P<request>[^\]]*)\] Prefill done in (?P<ms>\d{1,15})ms$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_BOTH,
        meaning="The greater part of the time to the first token; the summary has its percentiles.",
        fix=NOTHING,
        source="read: disagg_proxy_multiturn.py of vLLM 0.33.0; pdctl/router/driver.py",
    ),
    Signature(
        id="router.handle.kept",
        title="a handle is kept for the next turn",
        literals=(": cached D blocks (", ROUTER_LITERAL),
        pattern=r"^conv=(?P<conversation>.*): cached D blocks \(remote_request_id=(?P<handle>[^,]*)"
        r", blocks=(?P<blocks>\d+)(?:, tokens=(?P<tokens>\d+))?\)$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_BOTH,
        meaning="Decode answered with a handle: it returns them, and the next turn can reuse.",
        fix=NOTHING,
        source="read: disagg_proxy_multiturn.py of vLLM 0.33.0; pdctl/router/driver.py",
    ),
    Signature(
        id="router.handle.sent",
        title="a handle is on its way to prefill",
        literals=("cached blocks to P (",),
        pattern=r"^\[(?P<request>[^\]]*)\] conv=(?P<conversation>.*): sending D's cached blocks to "
        r"P \(remote_request_id=(?P<handle>[^)]*)\)$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_EXAMPLE,
        meaning="The example proxy attached a handle; it is gone, whatever becomes of the turn.",
        fix=NOTHING,
        source="read: disagg_proxy_multiturn.py of vLLM 0.33.0",
    ),
    Signature(
        id="router.cache.off",
        title="a turn that is never reused",
        literals=(": cache OFF", ROUTER_LITERAL),
        pattern=_LINE + "OFF" + _OUR_TAIL,
        severity="note",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Reuse is switched off for it, or the request has a field that rules reuse out; "
        "the reason says which.",
        fix=Fix("see the reason in docs/router.md", ("pdctl reuse",)),
        source="read: pdctl/router/server.py",
    ),
    Signature(
        id="router.handle.settled",
        title="what became of a handle",
        literals=(ROUTER_LITERAL,),
        pattern=r"^\[(?P<request>[^\]]*)\] handle (?P<handle>\S+) consumed \((?P<reason>\w+)\)$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_OURS,
        meaning="A handle was used up by a turn.",
        fix=NOTHING,
        source="read: pdctl/router/driver.py",
    ),
    Signature(
        id="router.handle.unknown",
        title="a handle was given out and nobody knows what became of it",
        literals=(ROUTER_LITERAL,),
        pattern=r"^\[(?P<request>[^\]]*)\] handle (?P<handle>\S+) (?P<outcome>\w+) "
        r"\((?P<reason>\w+)\)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Prefill failed or was silent on a turn that carried a handle. The turn ran again "
        "without it; decode keeps the blocks until its TTL.",
        fix=Fix("look at prefill's log at that time", ("pdctl logs --role prefill",)),
        source="read: pdctl/router/driver.py",
        follows=("kv.read.declined", "nixl.peer.disconnected", "nixl.transfer.failed"),
    ),
    Signature(
        id="router.cache.lost",
        title="a MISS that should have been a HIT",
        literals=(),
        pattern="",
        severity="degrade",
        roles=_ROUTER,
        versions=_BOTH,
        meaning="A conversation that was seen before was computed from the beginning. The field "
        "`why` says what is known: `no_handle` (decode gave none: `bidirectional_kv_xfer` is off "
        "there, or the version puts no handles into streams), `spent` (its handle went into a turn "
        "that failed), `restarted`, or the reason that pdctl's router gave.",
        fix=Fix(
            "`no_handle`: set `kv.bidirectional: true`, which goes to both sides, and leave "
            "`engine.plugin: auto`; `spent`: mend what made that turn fail; else see the reason in "
            "docs/router.md",
            ("pdctl verify",),
        ),
        source="concluded; run: recorded with upstream's example proxy on vLLM 0.32.0",
        follows=("kv.read.declined", "kv.load.failed", "nixl.peer.disconnected"),
        derived=True,
    ),
    Signature(
        id="router.cache.never_hits",
        title="no turn was ever reused",
        literals=(),
        pattern="",
        severity="degrade",
        roles=_ROUTER,
        versions=_BOTH,
        meaning="Conversations went on, and not one of their later turns was a HIT. The pair "
        "serves, and does not do what it was set up for.",
        fix=Fix(
            "see whether decode gives handles (`kv.bidirectional`, streaming on vLLM before 0.33 "
            "without pdctl's plugin) and whether clients name their conversations",
            ("pdctl verify", "pdctl doctor"),
        ),
        source="FACTS T7 and T9, run; upstream bug list 96",
        derived=True,
    ),
    Signature(
        id="router.conversation.unnamed",
        title="a request without a conversation id",
        literals=("No conversation_id provided",),
        pattern=r"^\[(?P<request>[^\]]*)\] No conversation_id provided",
        severity="degrade",
        roles=_ROUTER,
        versions=_EXAMPLE,
        meaning="The example proxy knows conversations by that field alone; this turn reuses "
        "nothing, and no later one reuses it.",
        fix=Fix(
            "send `conversation_id` (vLLM's benchmark: `--send-conversation-id`), or use "
            "`router.kind: pdctl`, which knows conversations by their tokens"
        ),
        source="run: recorded on vLLM 0.32.0; upstream bug list 96",
    ),
    Signature(
        id="router.handle.stale",
        title="a turn came after the router's TTL",
        literals=(": stale cache entry (age=",),
        pattern=r"^conv=(?P<conversation>.*): stale cache entry \(age=(?P<age>[\d.]+)s > "
        r"ttl=(?P<ttl>[\d.]+)s\), discarding$",
        severity="note",
        roles=_ROUTER,
        versions=_EXAMPLE,
        meaning="The user took longer than the TTL; the handle was dropped, and the turn is "
        "computed again.",
        fix=Fix("if it happens often, give `kv.decoder_ttl` a greater value"),
        source="read: disagg_proxy_multiturn.py of vLLM 0.33.0",
    ),
    Signature(
        id="router.handle.expired",
        title="a handle was not used within its TTL",
        literals=(ROUTER_LITERAL,),
        pattern=r"^conv=(?P<conversation>.*): handle expired$",
        severity="note",
        roles=_ROUTER,
        versions=_OURS,
        meaning="The end of most conversations: nobody came back. It is also what a late turn "
        "finds.",
        fix=Fix("if late turns are many, give `kv.decoder_ttl` a greater value"),
        source="read: pdctl/router/probe.py",
    ),
    Signature(
        id="router.prefill.failed",
        title="prefill did not answer a turn",
        literals=(ROUTER_LITERAL,),
        pattern=r"^\[(?P<request>[^\]]*)\] prefill (?P<url>\S+) failed: (?P<kind>\w+) "
        r"?(?P<status>\d*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="The turn went on another way: again without its handle, on another prefill, or on "
        "decode alone. The client has its answer, later.",
        fix=Fix("look at prefill's log at that time", ("pdctl logs --role prefill",)),
        source="read: pdctl/router/driver.py",
        follows=("kv.read.declined", "kv.load.failed", "engine.dead"),
    ),
    Signature(
        id="router.decode.interrupted",
        title="decode broke off in mid-answer",
        literals=(ROUTER_LITERAL,),
        pattern=r"^\[(?P<request>[^\]]*)\] decode (?P<what>.*) in mid-answer$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="The client got an error event in its stream; nothing can be tried again after the "
        "first token.",
        fix=Fix("look at decode's log at that time", ("pdctl logs --role decode",)),
        source="read: pdctl/router/relay.py",
        follows=("engine.dead",),
    ),
    Signature(
        id="router.alarm.prompt_mismatch",
        title="`/tokenize` and prefill disagree about a prompt",
        literals=(ROUTER_LITERAL,),
        pattern=r"^ALARM prompt_mismatch: (?P<what>.*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="The ids that were compared are not those that prefill would compute. The turn was "
        "done again cold, and requests of that shape run cold from then on: right, but slow.",
        fix=Fix("start prefill with `--enable-scale-out`, so that it renders chats itself"),
        source="read: pdctl/router/core.py; FACTS 10",
    ),
    Signature(
        id="router.alarm.audit",
        title="a reused answer differs from a cold one",
        literals=(ROUTER_LITERAL,),
        pattern=r"^ALARM audit_breach: \[(?P<request>[^\]]*)\] (?P<prefill>\S+) × "
        r"(?P<decode>\S+): (?P<why>.*)$",
        severity="block",
        roles=_ROUTER,
        versions=_OURS,
        meaning="What was reused gave other tokens than computing would. Answers of this pair may "
        "be wrong; the router uses it no more.",
        fix=Fix(
            "switch reuse off, compare weights, block size and KV layout of the two engines",
            ("pdctl reuse off", "pdctl doctor"),
        ),
        source="read: pdctl/router/auditor.py",
    ),
    Signature(
        id="router.alarm.other",
        title="the router raises an alarm",
        literals=(ROUTER_LITERAL,),
        pattern=r"^ALARM (?P<kind>\w+): (?P<what>.*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="The router met something that should not happen; the text says what.",
        fix=Fix("see docs/router.md"),
        source="read: pdctl/router/driver.py",
    ),
    Signature(
        id="router.engine.down",
        title="an engine does not answer",
        literals=(ROUTER_LITERAL,),
        pattern=r"^(?P<engine>prefill|decode) (?P<url>\S+) is down: (?P<why>.*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="The router sends it nothing until it answers again. What decode kept there is "
        "lost.",
        fix=Fix("look at its log, then start it again", ("pdctl status", "pdctl up")),
        source="read: pdctl/router/probe.py",
        follows=("engine.dead", "host.oom", "gpu.oom"),
    ),
    Signature(
        id="router.engine.up",
        title="an engine answers",
        literals=(ROUTER_LITERAL,),
        pattern=r"^(?P<engine>prefill|decode) (?P<url>\S+) is up \(vLLM (?P<version>[^,]*), "
        r"block size (?P<block_size>[^)]*)\)$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_OURS,
        meaning="The router found the engine.",
        fix=NOTHING,
        source="read: pdctl/router/probe.py",
    ),
    Signature(
        id="router.engine.restarted",
        title="decode was restarted",
        literals=(ROUTER_LITERAL,),
        pattern=r"^(?P<url>\S+) was restarted: (?P<handles>\d+) handles forgotten$",
        severity="note",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Handles of the start before mean nothing now; the next turn of those "
        "conversations is computed.",
        fix=Fix("nothing, unless nobody restarted it", ("pdctl logs --role decode",)),
        source="read: pdctl/router/driver.py",
    ),
    Signature(
        id="router.pair.unproven",
        title="the router does not reuse between these engines",
        literals=(ROUTER_LITERAL,),
        pattern=r"^pair (?P<prefill>\S+) × (?P<decode>\S+) does not reuse: (?P<why>.*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Its probe saw no blocks move, or moved wrong. Turns over this pair are computed.",
        fix=Fix("mend what the reason names; the router probes again by itself", ("pdctl doctor",)),
        source="read: pdctl/router/probe.py",
    ),
    Signature(
        id="router.pair.proven",
        title="the router saw blocks move both ways",
        literals=(ROUTER_LITERAL,),
        pattern=r"^pair (?P<prefill>\S+) × (?P<decode>\S+) proven: blocks move both ways$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_OURS,
        meaning="Turns over this pair can be reused.",
        fix=NOTHING,
        source="read: pdctl/router/probe.py",
    ),
    Signature(
        id="router.reuse.switched",
        title="reuse was switched",
        literals=(ROUTER_LITERAL,),
        pattern=r"^reuse is set to (?P<share>\S+), by tenant: (?P<tenants>.*)$",
        severity="note",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Somebody ran `pdctl reuse`; MISSes after it may be meant.",
        fix=Fix("see what is set", ("pdctl reuse",)),
        source="read: pdctl/router/admin.py",
    ),
    Signature(
        id="router.release.failed",
        title="blocks could not be given back to decode",
        literals=(ROUTER_LITERAL,),
        pattern=r"^release of (?P<handle>\S+) failed: (?P<why>.*)$",
        severity="note",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Decode keeps them until their TTL; that costs memory, nothing else.",
        fix=Fix("if decode runs full, look at prefill, which passes releases on"),
        source="read: pdctl/router/driver.py",
    ),
    Signature(
        id="router.release.late",
        title="the router ended before all blocks were given back",
        literals=(ROUTER_LITERAL,),
        pattern=r"^(?P<handles>\d+) handles were not given back: decode keeps them for its TTL$",
        severity="note",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Decode has less room until their TTL ends.",
        fix=Fix("nothing, or restart decode if it must have the room at once"),
        source="read: pdctl/router/driver.py",
    ),
    Signature(
        id="router.requestlog.broken",
        title="the request log cannot be written",
        literals=(ROUTER_LITERAL,),
        pattern=r"^the request log (?P<file>.*?) (?P<what>loses lines|is not reopened|grows on): "
        r"(?P<why>.*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Turns are served; `pdctl analyze` will not know of them.",
        fix=Fix("make room, or give the router's user the right to write there"),
        source="read: pdctl/router/requestlog.py",
    ),
    Signature(
        id="router.store.failed",
        title="the shared store does not answer",
        literals=(ROUTER_LITERAL,),
        pattern=r"^the store (?P<store>\S+) fails \((?P<why>.*)\): turns run cold$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Handles cannot be looked up or kept: turns are right, and computed from the "
        "beginning, until the store is back.",
        fix=Fix("see that Redis or Valkey runs and is reached from the router (`router.store`)"),
        source="read: pdctl/router/redis_store.py",
    ),
    Signature(
        id="router.store.refused",
        title="the shared store refuses an operation",
        literals=(ROUTER_LITERAL,),
        pattern=r"^the store (?P<store>\S+) refuses `(?P<operation>[^`]*)`: (?P<why>.*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="It answers and says no: out of memory, read-only, or no right to run scripts. "
        "Turns run cold as far as they need it.",
        fix=Fix("mend what the text names, in the store's own configuration"),
        source="read: pdctl/router/redis_store.py",
    ),
    Signature(
        id="router.store.reset",
        title="the shared store was started anew, restored or failed over",
        literals=(ROUTER_LITERAL,),
        pattern=r"^the store (?P<store>\S+) was started anew, restored or failed over",
        severity="note",
        roles=_ROUTER,
        versions=_OURS,
        meaning="What it may have forgotten or brought back cannot be trusted, so all handles are "
        "dropped; the next turn of every conversation is computed.",
        fix=Fix("nothing, unless nobody did it"),
        source="read: pdctl/router/redis_store.py",
    ),
    Signature(
        id="router.store.up",
        title="the shared store answers",
        literals=(ROUTER_LITERAL,),
        pattern=r"^the store (?P<store>\S+) is (?:there|back)$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_OURS,
        meaning="Routers share their handles.",
        fix=NOTHING,
        source="read: pdctl/router/redis_store.py",
    ),
    Signature(
        id="router.keys.broken",
        title="the file of API keys cannot be read anew",
        literals=(ROUTER_LITERAL,),
        pattern=r"^the API keys stay as they were: (?P<why>.*)$",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Who had a key still has it, also one that was taken out of the file.",
        fix=Fix("mend the file; the router reads it again by itself"),
        source="read: pdctl/router/keys.py",
    ),
    Signature(
        id="router.files.few",
        title="the router may open too few files",
        literals=(ROUTER_LITERAL,),
        pattern=r"^this process may open (?P<allowed>\d+) files, too few for (?P<requests>\d+) ",
        severity="degrade",
        roles=_ROUTER,
        versions=_OURS,
        meaning="Under load, connections will be refused.",
        fix=Fix("raise the limit (`LimitNOFILE=` in a unit)", ("ulimit -n 65536",)),
        source="read: pdctl/router/server.py",
    ),
    Signature(
        id="router.started",
        title="the router was started",
        literals=(ROUTER_LITERAL, " decode instances"),
        pattern=r"^(?:pdctl router (?P<version>\S+) listens on (?P<url>\S+)"
        r"|Ready: (?P<prefills>\d+) prefill, (?P<decodes>\d+) decode instances)$",
        severity="note",
        good=True,
        roles=_ROUTER,
        versions=_BOTH,
        meaning="Handles kept in memory are gone from here on.",
        fix=NOTHING,
        source="read: disagg_proxy_multiturn.py of vLLM 0.33.0; pdctl/router/server.py",
    ),
    Signature(
        id="router.upstream.error",
        title="an engine's error became a 500 of the example proxy",
        literals=("httpx.HTTPStatusError: ",),
        pattern=r"^httpx\.HTTPStatusError: (?:Server|Client) error '(?P<status>\d+)[^']*' for url "
        r"'(?P<url>[^']*)'",
        severity="degrade",
        roles=_ROUTER,
        versions=_EXAMPLE,
        meaning="It tries nothing again: whatever an engine refuses, also a 400 for a wrong "
        "request, is a 500 for the client, and the conversation's handle is lost.",
        fix=Fix(
            "mend what the engine refused; `router.kind: pdctl` tries again without the handle and "
            "passes the engine's status on"
        ),
        source="run: recorded on vLLM 0.32.0; FACTS T10; upstream bug list 84",
        follows=("kv.read.declined", "kv.load.failed", "engine.dead"),
    ),
    Signature(
        id="router.min_tokens",
        title="prefill refuses `min_tokens`",
        literals=("min_tokens must be less than or equal to ",),
        pattern=r"min_tokens must be less than or equal to max_tokens=(?P<max>\d+), got "
        r"(?P<got>\d+)",
        severity="degrade",
        roles=ENGINES,
        meaning="The router asks prefill for one token and left the client's `min_tokens` in. Such "
        "requests fail with 400.",
        fix=Fix("use a router that takes `min_tokens` out for prefill (`router.kind: pdctl`)"),
        source="read: vllm/sampling_params.py; upstream bug list 86",
    ),
)
"""HIT and MISS first: they are most of a router's lines, and candidates are tried in order."""
