"""Checks of the configuration, which need nothing that runs.

What is wrong is said by the rules that every command loads a configuration with (`config.checks`,
`engine.validate`); here it is only sorted by what it is about.
"""

from collections.abc import Callable

from pdctl.base.configfacts import KEY_FILES, STATE, ConfigProblem, Settings
from pdctl.base.durations import format_duration
from pdctl.base.facts import PairFacts
from pdctl.doctor.table import Check, Fix, Judge, Verdict, failed, passed, skipped, warned

NO_FILE = "there is no configuration"

_TTL = ("kv.decoder_ttl", "router.ttl", "kv.lease_duration")
_TOPICS: dict[str, Callable[[ConfigProblem], bool]] = {
    "config.state": lambda p: p.key == STATE,
    "config.key_files": lambda p: p.key == KEY_FILES,
    "config.keys": lambda p: p.unknown,
    "config.version": lambda p: p.key in ("engine.vllm", "engine.nixl"),
    "config.connector": lambda p: "--kv-" in p.message or p.key.endswith("FI_PROVIDER"),
    "config.ttl": lambda p: p.key in _TTL,
    "config.failure_policy": lambda p: p.key == "kv.load_failure_policy",
    "config.buffer_device": lambda p: p.key == "kv.buffer_device",
    "config.backends": lambda p: p.key.startswith("kv.backends"),
    "config.parallel": lambda p: "parallel" in p.key + p.message or "must be 1:" in p.message,
    "config.equal": lambda p: "extra_args" in p.key or ".env" in p.key,
}
"""Which row tells a problem; the first that takes it. `config.valid` tells the rest."""


def topic_of(problem: ConfigProblem) -> str:
    """The id of the row that tells it."""
    return next((id for id, takes in _TOPICS.items() if takes(problem)), "config.valid")


def _judge(id: str, fine: Callable[[PairFacts, Settings], Verdict]) -> Judge:
    """Fails with the problems of one topic; without any, `fine` says what is set."""

    def judge(facts: PairFacts, _: str) -> Verdict:
        config = facts.config
        if config is None:
            return skipped(NO_FILE)
        if mine := [str(each) for each in config.problems if topic_of(each) == id]:
            return failed(*mine)
        if config.settings is None:
            return passed("nothing is wrong with it")
        return fine(facts, config.settings)

    return judge


def _file(facts: PairFacts, _: str) -> Verdict:
    config = facts.config
    if config is None:
        return skipped(NO_FILE)
    if config.missing:
        return skipped(f"there is no file `{config.file}` here; `pdctl init` writes one")
    return failed(config.error) if config.error else passed(f"{config.file} was read")


def _valid(facts: PairFacts, settings: Settings) -> Verdict:
    return passed(f"`target.kind: {settings.target}`, model {settings.model}")


def _state(facts: PairFacts, settings: Settings) -> Verdict:
    count = len(facts.processes)
    return passed(f"{count} processes are recorded" if count else "nothing is recorded")


def _key_files(facts: PairFacts, settings: Settings) -> Verdict:
    return passed("what the file names can be read, or it names none")


def _keys(facts: PairFacts, settings: Settings) -> Verdict:
    return passed("every key is known")


def _version(facts: PairFacts, settings: Settings) -> Verdict:
    if settings.vllm is None:
        return skipped("something else installs these engines")
    if not settings.version_known:
        said = facts.config.notices if facts.config else {}
        return warned(
            said.get("newer_version")
            or said.get("unknown_version")
            or f"vLLM {settings.vllm} has no row in the version table"
        )
    return passed(f"vLLM {settings.vllm}, NIXL {settings.nixl}")


def _connector(facts: PairFacts, settings: Settings) -> Verdict:
    return passed(
        f"prefill is {settings.prefill.kv_role}, decode {settings.decode.kv_role}",
        "an engine's id is new at every start",
    )


def _ttl(facts: PairFacts, settings: Settings) -> Verdict:
    said = (
        f"decode keeps blocks {format_duration(settings.decoder_ttl)}, the router offers them "
        f"{format_duration(settings.router_ttl)}"
    )
    if settings.router_ttl > settings.safe_router_ttl:
        return failed(said, f"safe is {format_duration(settings.safe_router_ttl)} at most")
    return passed(said)


def _policy(facts: PairFacts, settings: Settings) -> Verdict:
    return passed(f"`kv.load_failure_policy: {settings.failure_policy}`")


def _buffer_device(facts: PairFacts, settings: Settings) -> Verdict:
    if settings.target == "external":
        return skipped("something else sets these engines up")
    return passed(settings.buffer_device or "the engine's own choice")


def _backends(facts: PairFacts, settings: Settings) -> Verdict:
    if settings.target == "external":
        return skipped("something else sets these engines up")
    return passed(f"NIXL {settings.nixl} with {', '.join(settings.backends)}")


def _parallel(facts: PairFacts, settings: Settings) -> Verdict:
    sizes = {"prefill": settings.prefill.tensor_parallel, "decode": settings.decode.tensor_parallel}
    heads = next((w.config.get("num_attention_heads") for w in facts.weights if w.config), None)
    if heads is not None and heads.isdigit():
        bad = [role for role, size in sizes.items() if int(heads) % size]
        if bad:
            return failed(
                f"{bad[0]} has tensor parallel size {sizes[bad[0]]}, which does not divide the "
                f"model's {heads} attention heads"
            )
    return passed(", ".join(f"{role} {size}" for role, size in sizes.items()))


def _equal(facts: PairFacts, settings: Settings) -> Verdict:
    size = f"block size {settings.block_size}" if settings.block_size else "the engine's block size"
    return passed(f"one model section for both sides: dtype {settings.dtype}, {size}")


def _bidirectional(facts: PairFacts, settings: Settings) -> Verdict:
    if not settings.bidirectional:
        return warned("`kv.bidirectional` is false: no turn reuses another's KV")
    return passed("on for both sides")


def _prefix_caching(facts: PairFacts, settings: Settings) -> Verdict:
    if settings.decode.prefix_caching is False:
        return warned("`decode.prefix_caching` is false")
    return passed("decode has its own prefix cache")


def _revision(facts: PairFacts, settings: Settings) -> Verdict:
    if settings.target == "external":
        return skipped("something else loads these models")
    if settings.offline_model:
        return passed("the model is a folder")
    if settings.revision is None:
        return warned("`model.revision` is not set")
    return passed(f"pinned to {settings.revision}")


_RECURRENT = ("mamba", "linear_attention", "recurrent", "conv")


def _model(facts: PairFacts, settings: Settings) -> Verdict:
    known = next((weights.config for weights in facts.weights if weights.config), None)
    if known is None:
        return skipped("the model's config.json was not read")
    layers = ", ".join(
        known.get(key, "") for key in ("layer_types", "layers_block_type", "model_type")
    ).lower()
    odd = []
    if any(word in layers for word in _RECURRENT) or "hybrid_override_pattern" in known:
        odd.append("it has recurrent layers (Mamba or linear attention)")
    if "sliding_attention" in layers or (
        known.get("sliding_window") and known.get("use_sliding_window", "True") != "False"
    ):
        odd.append("it has sliding-window layers")
    if "attention_chunk_size" in known:
        odd.append("it has chunked attention")
    name = known.get("architectures") or known.get("model_type") or settings.model
    if odd:
        return warned(f"{name}: {'; '.join(odd)}")
    return passed(f"{name}: full attention in every layer")


def _environment(facts: PairFacts, settings: Settings) -> Verdict:
    said = facts.config.notices if facts.config else {}
    if bad := [said[topic] for topic in ("one_gpu", "segments") if topic in said]:
        return warned(*bad)
    return passed("no variable is known to do harm")


_EDIT = "change the file where it says; `pdctl render` shows what comes of it"

CHECKS: tuple[Check, ...] = (
    Check(
        id="config.file",
        title="the configuration can be read",
        scope="config",
        severity="block",
        judge=_file,
        meaning="Nothing is known of the deployment.",
        fix=Fix("name the file with `--file`, or write one", ("pdctl init",)),
    ),
    Check(
        id="config.keys",
        title="every key of the configuration is known",
        scope="config",
        severity="block",
        judge=_judge("config.keys", _keys),
        meaning="vLLM silently ignores keys that it does not know, so a misspelt one would have no "
        "effect; pdctl refuses it.",
        fix=Fix("write the key that is named, or remove it"),
        needs=("config.file",),
    ),
    Check(
        id="config.version",
        title="this vLLM and NIXL go together and are known",
        scope="config",
        severity="block",
        judge=_judge("config.version", _version),
        meaning="What a version takes and does is known by version: old ones read freed blocks, "
        "and some pairs of vLLM and NIXL do not start or move no KV.",
        fix=Fix("choose versions of docs/versions.md (`engine.vllm`, `engine.nixl`)"),
        needs=("config.file",),
    ),
    Check(
        id="config.connector",
        title="the connector's role and engine id are left to pdctl",
        scope="config",
        severity="block",
        judge=_judge("config.connector", _connector),
        meaning="With an engine id that stays the same over a restart, every later reuse fails "
        "until prefill restarts too; with a wrong role no KV moves.",
        fix=Fix("remove the argument: the section `kv` makes it, the same for both sides"),
        needs=("config.file",),
    ),
    Check(
        id="config.ttl",
        title="the TTLs leave room for a read",
        scope="config",
        severity="block",
        judge=_judge("config.ttl", _ttl),
        meaning="Prefill declines reads from 5 s before decode gives its blocks up, and a declined "
        "read fails the request.",
        fix=Fix("leave `router.ttl` out, which takes the longest safe value"),
        needs=("config.file",),
    ),
    Check(
        id="config.failure_policy",
        title="a failed read ends its request at once",
        scope="config",
        severity="block",
        judge=_judge("config.failure_policy", _policy),
        meaning="With `recompute` a turn whose read is declined hangs for ever.",
        fix=Fix(
            "set `kv.load_failure_policy: fail`: the router tries once more without the handle"
        ),
        needs=("config.file",),
    ),
    Check(
        id="config.buffer_device",
        title="the KV cache is where the engine computes",
        scope="config",
        severity="block",
        judge=_judge("config.buffer_device", _buffer_device),
        meaning="A GPU engine with its KV in host memory never starts the read from decode.",
        fix=Fix("leave `kv.buffer_device` out"),
        needs=("config.file",),
    ),
    Check(
        id="config.backends",
        title="NIXL has the transport that is configured",
        scope="config",
        severity="block",
        judge=_judge("config.backends", _backends),
        meaning="The transport would not load, and NIXL says little about it.",
        fix=Fix("choose another NIXL or another transport (`engine.nixl`, `kv.backends`)"),
        needs=("config.file",),
    ),
    Check(
        id="config.parallel",
        title="tensor parallel sizes go together, and nothing else splits the model",
        scope="config",
        severity="block",
        judge=_judge("config.parallel", _parallel),
        meaning="Blocks of one side do not map to those of the other.",
        fix=Fix(
            "make the sizes equal or one a multiple of the other; pipeline and context "
            "parallel sizes must be 1"
        ),
        needs=("config.file",),
    ),
    Check(
        id="config.equal",
        title="what must be equal on both sides is set once",
        scope="config",
        severity="block",
        judge=_judge("config.equal", _equal),
        meaning="Sides that differ in model, types, block size or tokenizer refuse each other, or "
        "read the wrong blocks.",
        fix=Fix("move it to the key or section that is named"),
        needs=("config.file",),
    ),
    Check(
        id="config.valid",
        title="the configuration has no other contradiction",
        scope="config",
        severity="block",
        judge=_judge("config.valid", _valid),
        meaning="`pdctl up` refuses this configuration.",
        fix=Fix(_EDIT, ("pdctl render",)),
        needs=("config.file",),
    ),
    Check(
        id="config.key_files",
        title="the files of API keys can be read",
        scope="config",
        severity="block",
        judge=_judge("config.key_files", _key_files),
        meaning="`pdctl up` does not start without them, and requests to engines or router that "
        "want a key are refused.",
        fix=Fix(
            "write the file, or name another one (`router.api_keys_file`, `engine.api_key_file`)"
        ),
        needs=("config.file",),
    ),
    Check(
        id="config.state",
        title="what was recorded of the deployment can be read",
        scope="config",
        severity="block",
        judge=_judge("config.state", _state),
        meaning="pdctl does not know what it started, so nothing that runs can be looked at.",
        fix=Fix(
            "put back a good copy, or let pdctl forget it and end what carries its mark",
            ("pdctl down --forget-damaged-state",),
        ),
        needs=("config.file",),
    ),
    Check(
        id="config.bidirectional",
        title="reuse is on",
        scope="config",
        severity="degrade",
        judge=_judge("config.bidirectional", _bidirectional),
        meaning="Prefill computes every turn from the beginning.",
        fix=Fix("set `kv.bidirectional: true`", ("pdctl up",)),
        needs=("config.file",),
    ),
    Check(
        id="config.prefix_caching",
        title="decode has its own prefix cache",
        scope="config",
        severity="degrade",
        judge=_judge("config.prefix_caching", _prefix_caching),
        meaning="Decode pulls the whole history from prefill at each turn, what it had included.",
        fix=Fix("leave `decode.prefix_caching` out", ("pdctl up",)),
        needs=("config.file",),
    ),
    Check(
        id="config.model",
        title="reuse is proven for this kind of model",
        scope="config",
        severity="degrade",
        judge=_judge("config.model", _model),
        meaning="Trimmed handles are proven for full attention only; for other layers the router "
        "reuses less or nothing.",
        fix=Fix("let the proof decide before you rely on it", ("pdctl verify",)),
        needs=("config.file",),
    ),
    Check(
        id="config.revision",
        title="the model's revision is pinned",
        scope="config",
        severity="note",
        judge=_judge("config.revision", _revision),
        meaning="The handshake does not compare weights: hosts that loaded another revision give "
        "wrong answers and no error.",
        fix=Fix("set `model.revision` to a commit"),
        needs=("config.file",),
    ),
    Check(
        id="config.environment",
        title="the environment is not known to do harm",
        scope="config",
        severity="degrade",
        judge=_judge("config.environment", _environment),
        meaning="Engines would not start, or transfers would be very slow.",
        fix=Fix("change the variables that are named (`prefill.env`, `decode.env`, `model.env`)"),
        needs=("config.file",),
    ),
)
