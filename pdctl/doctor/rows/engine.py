"""Checks of each engine, and of what engines must have in common."""

import difflib
from collections import Counter
from collections.abc import Mapping

from pdctl.base.facts import PairFacts, ServingFacts
from pdctl.base.runfacts import KV_FLAG, ProcessFacts
from pdctl.doctor.table import Check, Fix, Verdict, failed, passed, skipped, warned
from pdctl.engine.kvconfig import KV_ROLES
from pdctl.engine.owned import EQUAL_FLAGS
from pdctl.engine.versions import every_kv_key, release, rows, traits
from pdctl.observe.weights import COMPARED
from pdctl.plan.differences import changes

_NOBODY_SHOWS = "no process shows its arguments, and no log its start"


def _engine(facts: PairFacts, name: str) -> ServingFacts:
    return next(engine for engine in facts.engines if engine.name == name)


def _engines(facts: PairFacts) -> list[ProcessFacts]:
    """Engine processes that run, or may run, as far as anybody looked."""
    return [p for p in facts.processes if p.role != "router" and p.alive is not False]


def _health(facts: PairFacts, target: str) -> Verdict:
    if why := facts.not_asked.get(target):
        return skipped(why)
    engine, process = _engine(facts, target), facts.process(target)
    if engine.error is None:
        return passed(f"{engine.url} answers")
    gone = process is not None and process.alive is False
    said = [f"pid {process.pid} is gone"] if process and gone and process.pid else []
    return failed(*said, f"{engine.url}: {engine.error}")


def _version(facts: PairFacts, _: str) -> Verdict:
    return _same(facts, "vLLM", {e.name: e.version for e in facts.engines})


def _model(facts: PairFacts, _: str) -> Verdict:
    return _same(facts, "model", {e.name: e.model_root for e in facts.engines})


def _block_size(facts: PairFacts, _: str) -> Verdict:
    sizes = {e.name: e.metrics.block_size if e.metrics else None for e in facts.engines}
    return _same(facts, "block size", _as_text(sizes))


def _max_model_len(facts: PairFacts, _: str) -> Verdict:
    found = _same(
        facts, "max_model_len", _as_text({e.name: e.max_model_len for e in facts.engines})
    )
    return warned(*found.evidence) if found.status == "fail" else found


def _as_text(values: Mapping[str, int | None]) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in values.items()}


def _same(facts: PairFacts, what: str, values: Mapping[str, str | None]) -> Verdict:
    if not values:
        return skipped("no engine is known")
    unknown = [name for name, value in values.items() if value is None]
    if unknown:
        return skipped(f"{', '.join(unknown)} did not say")
    if len(set(values.values())) == 1:
        return passed(f"{what} {next(iter(values.values()))} on all {len(values)} engines")
    return failed(*(f"{name}: {what} {value}" for name, value in values.items()))


# --- flags in force --------------------------------------------------------------------------


def _flag_on_both(facts: PairFacts, _: str) -> Verdict:
    states = {each.name: each.bidirectional for each in _engines(facts)}
    known = {name: state for name, state in states.items() if state is not None}
    if not known:
        return skipped(_NOBODY_SHOWS)
    settings = facts.settings
    if not any(known.values()) and settings is not None and not settings.bidirectional:
        return skipped("`kv.bidirectional` is false, and no engine has it on")
    said = [
        f"{name} runs with `bidirectional_kv_xfer` {'on' if state else 'off'}"
        for name, state in known.items()
    ]
    return passed(*said) if all(known.values()) else failed(*said)


_MUST_BE_EQUAL = frozenset(
    f"--{flag}"
    for flag in (
        *EQUAL_FLAGS,
        *("model", "revision", "dtype", "quantization", "kv-cache-dtype", "block-size"),
        *("attention-backend", "speculative-config", "chat-template", "trust-remote-code"),
    )
)
_CONNECTOR_EQUAL = ("kv_connector", "kv_buffer_device", "kv_connector_extra_config.backends")
_ENV_EQUAL = ("VLLM_KV_CACHE_LAYOUT", "VLLM_MLA_DISABLE", "VLLM_SSM_CONV_STATE_LAYOUT")


def _equal_options(process: ProcessFacts) -> dict[str, str]:
    """What must not differ between the sides, as this process has it."""
    options = {
        option: value
        for option, value in process.running.items()
        if option.partition(" ")[0] in _MUST_BE_EQUAL
        or option in [f"{KV_FLAG} {key}" for key in _CONNECTOR_EQUAL]
    }
    return options | {name: process.env[name] for name in _ENV_EQUAL if name in process.env}


def _flags_equal(facts: PairFacts, _: str) -> Verdict:
    seen = [each for each in _engines(facts) if each.running]
    if len(seen) < 2:
        return skipped("fewer than two processes show their arguments")
    first, *others = ((each.name, _equal_options(each)) for each in seen)
    said = [
        f"{first[0]} → {name}: {line}"
        for name, options in others
        for line in changes(first[1], options)
    ]
    return failed(*said) if said else passed(f"equal on {len(seen)} engines, as they run")


def _role(facts: PairFacts, target: str) -> Verdict:
    process = facts.process(target)
    role = process.connector("kv_role") if process and process.role != "router" else None
    if process is None or role is None:
        return skipped(_NOBODY_SHOWS)
    wanted = KV_ROLES["prefill" if process.role == "prefill" else "decode"]
    if role == "kv_both":
        return warned("it runs with the old `kv_role: kv_both`", severity="note")
    if role != wanted:
        return failed(f"it runs with `kv_role: {role}`; a {process.role} engine is `{wanted}`")
    return passed(f"`{role}`")


def _engine_id(facts: PairFacts, target: str) -> Verdict:
    process = facts.process(target)
    if process is None or not (process.knows_connector or process.starts):
        return skipped(_NOBODY_SHOWS)
    counts = Counter(start.engine_id for start in process.starts if start.engine_id)
    again = [engine_id for engine_id, count in counts.items() if count > 1]
    running = process.connector("engine_id")
    if again:
        return failed(f"its log shows {counts[again[0]]} starts with the same engine id {again[0]}")
    if running and process.engine_id and running != process.engine_id:
        return failed(f"it runs with the engine id {running}, which `pdctl up` did not make")
    if running is None and not counts:
        return passed("none is given, so vLLM makes a new one at every start")
    return passed(f"{running or next(iter(counts))}, of this start alone")


def _policy(facts: PairFacts, target: str) -> Verdict:
    process = facts.process(target)
    if process is None or not process.knows_connector:
        return skipped(_NOBODY_SHOWS)
    policy = process.connector("kv_load_failure_policy") or "fail"
    if policy == "recompute" and process.bidirectional:
        return failed("it runs with `kv_load_failure_policy: recompute`")
    return passed(f"`{policy}`")


def _ignored(facts: PairFacts, target: str) -> Verdict:
    process = facts.process(target)
    if process is None or not process.knows_connector:
        return skipped(_NOBODY_SHOWS)
    version = _engine(facts, target).version or (facts.settings and facts.settings.vllm)
    try:
        known = traits(version or "").kv_keys.value
    except ValueError:
        return skipped("its version is not known")
    unknown = sorted(process.extra_keys - known)
    if not unknown:
        return passed(f"vLLM {version} reads all {len(process.extra_keys)} of them")
    return warned(*(_unread(key, version or "", known) for key in unknown))


def _unread(key: str, version: str, known: frozenset[str]) -> str:
    near = difflib.get_close_matches(key, sorted(known), n=1, cutoff=0.4)
    meant = f"; did you mean `{near[0]}`?" if near else ""
    if key in every_kv_key():
        return f"`{key}` is not read by vLLM {version}, though by other releases"
    return f"`{key}` is not a key of any vLLM release{meant}"


def _drift(facts: PairFacts, target: str) -> Verdict:
    process = facts.process(target)
    if process is None or not process.running or not process.wanted:
        return skipped("nothing to compare: what runs was not started by `pdctl up`, or not seen")
    said = [
        *changes(_options(process.running), _options(process.wanted)),
        # Another user's process shows its arguments, and not its environment.
        *(changes(process.env, process.wanted_env) if process.env else ()),
    ]
    if not said:
        return passed(f"pid {process.pid} runs as the configuration says")
    return warned(*(f"{line} (running → configured)" for line in said))


def _options(options: Mapping[str, str]) -> dict[str, str]:
    """Without the program: an interpreter may be a script that becomes another."""
    return {name: value for name, value in options.items() if name.startswith("-")}


# --- the plugin, and what it brings ----------------------------------------------------------


def _plugin(facts: PairFacts, target: str) -> Verdict:
    process, settings = facts.process(target), facts.settings
    if settings is not None and not settings.plugin:
        return skipped("`engine.plugin` is off")
    if process is None or process.levers is None:
        return skipped("nobody says what plugin runs in it")
    if not process.levers:
        return failed("it is configured, and says nothing: it was not loaded")
    not_there = [name for name, state in process.levers.items() if state == "not-applicable"]
    if not_there:
        return warned(*(f"{name} does not fit this vLLM" for name in not_there))
    there = [name for name in process.levers if process.lever(name)]
    return passed(f"{', '.join(there) or 'no lever'} in force")


def _streaming(facts: PairFacts, target: str) -> Verdict:
    engine, process = _engine(facts, target), facts.process(target)
    if engine.role != "decode":
        return skipped("prefill answers no streams")
    if process is not None and process.lever("streaming_handles"):
        return passed("the plugin puts handles into streams, or this vLLM does")
    if facts.two_turn is not None and facts.two_turn.ok:
        return passed("the two-turn proof was streamed, and reused")
    has = _streams_by_itself(engine.version)
    if has:
        return passed(f"vLLM {engine.version} puts handles into streams")
    if has is None or process is None or process.levers is None:
        return skipped("its version does not say, and nobody knows what plugin runs in it")
    return failed(f"vLLM {engine.version} puts no handle into streams, and no plugin does")


def _streams_by_itself(version: str | None) -> bool | None:
    """Whether some release up to this one does; None when the version is not known."""
    try:
        wanted = release(version or "")
    except ValueError:
        return None
    return any(
        row.streaming_handles.value and release(name) <= wanted for name, row in rows().items()
    )


# --- room, caches, side channels, weights ----------------------------------------------------


def _room(facts: PairFacts, target: str) -> Verdict:
    metrics = _engine(facts, target).metrics
    if metrics is None or metrics.kv_usage is None:
        return skipped("it does not say how full it is")
    said = (
        f"{metrics.kv_usage:.0%} of its KV blocks are taken, {metrics.waiting or 0} requests wait, "
        f"{metrics.running or 0} run"
    )
    if not metrics.starved:
        return passed(said)
    if metrics.running:
        return warned(said)
    return failed(said, "nothing runs, so what fills it are turns that may come back")


def _prefix_cache(facts: PairFacts, target: str) -> Verdict:
    engine = _engine(facts, target)
    if engine.role != "decode":
        return skipped("prefill may do without")
    caching = engine.metrics.prefix_caching if engine.metrics else None
    if caching is None:
        return skipped("it does not say")
    return passed("it is on") if caching else warned("it runs with its prefix cache off")


def _side_channel(facts: PairFacts, target: str) -> Verdict:
    asked = [each for each in facts.side_channels if each.engine == target]
    if not asked:
        return skipped("nobody asked it")
    bad = [
        f"{each.source} → {each.address}:{each.port}: {each.error}" for each in asked if not each.ok
    ]
    if bad:
        return failed(*bad)
    return passed(*(f"{e.source} → {e.address}:{e.port}: it answers" for e in asked))


def _weights(facts: PairFacts, _: str) -> Verdict:
    known = [each for each in facts.weights if each.parts]
    if not known:
        errors = [f"{each.host}: {each.error}" for each in facts.weights if each.error]
        return skipped("; ".join(errors) or "no host has shown the model's files")
    first, *others = known
    said = [
        f"{first.host} → {other.host}: {line}"
        for other in others
        for line in changes(first.parts, other.parts)
    ]
    if said:
        return failed(*said)
    where = f"on {len(known)} hosts" if others else f"on {first.host}, the only host"
    return passed(f"{len(first.parts)} files {where}; compared: {COMPARED}")


CHECKS: tuple[Check, ...] = (
    Check(
        id="engine.health",
        title="the engine answers",
        scope="engine",
        severity="block",
        judge=_health,
        meaning="Requests that need this engine fail, or run somewhere else without reuse.",
        fix=Fix("look at its log, then start it again", ("pdctl status", "pdctl up")),
        needs=("host.reach",),
    ),
    Check(
        id="engine.side_channel",
        title="its side channel answers to the other engines",
        scope="engine",
        severity="block",
        judge=_side_channel,
        meaning="Engines shake hands over the side channel before any KV moves. Peers that have "
        "met keep working; after a restart of either, nothing moves any more.",
        fix=Fix(
            "let the port through between the hosts (`side_channel_port`); when it is open there, "
            "start the engine again",
            ("pdctl up",),
        ),
        needs=("host.reach",),
    ),
    Check(
        id="engine.version.equal",
        title="all engines run the same vLLM",
        scope="pair",
        severity="block",
        judge=_version,
        meaning="Engines of different versions refuse each other's handshake: no KV moves.",
        fix=Fix("install the same vLLM on all hosts (`engine.vllm`)", ("pdctl up",)),
        needs=("engine.health",),
    ),
    Check(
        id="engine.model.equal",
        title="all engines were started with the same model string",
        scope="pair",
        severity="block",
        judge=_model,
        meaning="The model's name or path is part of the handshake: two paths to the same "
        "weights do not match.",
        fix=Fix("use the same model id or the same path on all hosts (`model.id`)"),
        needs=("engine.health",),
    ),
    Check(
        id="engine.weights.equal",
        title="all hosts have the same weights",
        scope="pair",
        severity="block",
        judge=_weights,
        meaning="The handshake does not compare weights: KV of one revision under another gives "
        "wrong answers and no error.",
        fix=Fix("pin `model.revision` and load the model anew where it differs"),
        needs=("host.reach",),
    ),
    Check(
        id="engine.block_size.equal",
        title="all engines have the same KV block size",
        scope="pair",
        severity="block",
        judge=_block_size,
        meaning="Block size is not part of the handshake: a difference fails single requests, or "
        "reads the wrong blocks.",
        fix=Fix("set `model.block_size`, which goes to both sides"),
        needs=("engine.health",),
    ),
    Check(
        id="engine.bidirectional",
        title="reuse is on in prefill and in decode",
        scope="pair",
        severity="block",
        judge=_flag_on_both,
        meaning="With the flag on one side only, everything is healthy and nothing is reused; a "
        "prefill without it never answers a turn that brings a handle.",
        fix=Fix(
            "start both with `kv.bidirectional: true`, which one configuration does",
            ("pdctl up",),
        ),
        needs=("host.reach",),
    ),
    Check(
        id="engine.flags.equal",
        title="what must be equal is equal in the engines as they run",
        scope="pair",
        severity="block",
        judge=_flags_equal,
        meaning="The engines refuse each other, or read blocks that do not fit.",
        fix=Fix("start both from one configuration", ("pdctl up",)),
        needs=("host.reach",),
    ),
    Check(
        id="engine.role",
        title="its KV role is that of its side",
        scope="engine",
        severity="block",
        judge=_role,
        meaning="KV does not move the way the router sends it.",
        fix=Fix("prefill is `kv_producer`, decode `kv_consumer`", ("pdctl up",)),
        needs=("host.reach",),
    ),
    Check(
        id="engine.id",
        title="its engine id is new at every start",
        scope="engine",
        severity="block",
        judge=_engine_id,
        meaning="After a restart, prefill goes on talking to the dead engine of that id: every "
        "later reuse fails with HTTP 500 until prefill restarts too.",
        fix=Fix(
            "take `engine_id` out of the arguments, then restart prefill as well",
            ("pdctl down", "pdctl up"),
        ),
        needs=("host.reach",),
    ),
    Check(
        id="engine.failure_policy",
        title="a failed read ends its request at once in it",
        scope="engine",
        severity="block",
        judge=_policy,
        meaning="With `recompute` a turn whose read is declined hangs for ever.",
        fix=Fix("start it with `kv.load_failure_policy: fail`", ("pdctl up",)),
        needs=("host.reach",),
    ),
    Check(
        id="engine.keys",
        title="it reads every key of its connector",
        scope="engine",
        severity="degrade",
        judge=_ignored,
        meaning="vLLM ignores unknown keys of `kv_connector_extra_config` in silence: what they "
        "were to set has its default.",
        fix=Fix("write the key that this version knows; the section `kv` does", ("pdctl up",)),
        needs=("host.reach",),
    ),
    Check(
        id="engine.room",
        title="it has room for new requests",
        scope="engine",
        severity="block",
        judge=_room,
        meaning="Every finished turn keeps its blocks until the TTL ends. When those fill the "
        "engine, new requests wait for it.",
        fix=Fix(
            "`pdctl reuse off` gives back at once what pdctl's router keeps there; for good, lower "
            "`kv.decoder_ttl`, give decode more KV memory, or use a router that gives back",
            ("pdctl reuse off",),
        ),
        needs=("engine.health",),
    ),
    Check(
        id="engine.prefix_caching",
        title="decode runs with its prefix cache on",
        scope="engine",
        severity="degrade",
        judge=_prefix_cache,
        meaning="Decode pulls the whole history from prefill at each turn, what it had included.",
        fix=Fix("leave `decode.prefix_caching` out", ("pdctl up",)),
        needs=("engine.health",),
    ),
    Check(
        id="engine.max_model_len.equal",
        title="all engines take prompts of the same length",
        scope="pair",
        severity="degrade",
        judge=_max_model_len,
        meaning="A prompt that one side takes is refused by the other.",
        fix=Fix("set `model.max_model_len`, which goes to both sides", ("pdctl up",)),
        needs=("engine.health",),
    ),
    Check(
        id="engine.plugin",
        title="pdctl's plugin is in force in it",
        scope="engine",
        severity="degrade",
        judge=_plugin,
        meaning="Without it, streams of older engines bring no handles, and the TTL cannot be "
        "changed while the engine runs.",
        fix=Fix("start the engine again; its log says why a lever does not fit", ("pdctl up",)),
        needs=("host.reach",),
    ),
    Check(
        id="engine.streaming",
        title="its streams bring handles",
        scope="engine",
        severity="degrade",
        judge=_streaming,
        meaning="Conversations that stream are never reused.",
        fix=Fix("leave `engine.plugin` on `auto`, or take vLLM 0.33 or later", ("pdctl up",)),
        needs=("engine.health",),
    ),
    Check(
        id="engine.drift",
        title="it runs as the configuration says",
        scope="engine",
        severity="note",
        judge=_drift,
        meaning="The file was changed after the start, or the process was started otherwise.",
        fix=Fix("see what would change, then apply it", ("pdctl plan", "pdctl up")),
        needs=("host.reach",),
    ),
)
