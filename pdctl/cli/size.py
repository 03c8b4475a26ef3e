"""`pdctl size`: how many hosts some traffic needs, and what they cost."""

from typing import TYPE_CHECKING, Annotated

import typer

from pdctl.base.errors import UsageError
from pdctl.cli import options, ui
from pdctl.cli.analyze import no_cycles, seconds
from pdctl.cli.kvmodel import named_model

if TYPE_CHECKING:
    from pdctl.analyze.fleet import Choice, Fleet, Load, Site


def size(
    sessions: Annotated[int, typer.Option(min=1, help="Conversations that are open at once.")],
    turn_gap: Annotated[
        str, typer.Option(help="Mean time from an answer's end to the next turn: `30`, `2m`.")
    ],
    context: Annotated[int, typer.Option(min=2, help="Tokens of a turn, prompt and answer.")],
    model: Annotated[str, typer.Option(help="Model, or its config.json.")] = "Qwen/Qwen3-32B",
    ttl: Annotated[
        str | None, typer.Option(help="Decode's TTL; without, that with the fewest hosts.")
    ] = None,
    host: Annotated[str, typer.Option(help="EC2 type of the hosts.")] = "p5en.48xlarge",
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="GPUs of an engine; without, all of a host.")
    ] = None,
    kv_dtype: Annotated[str, typer.Option(help="As `model.kv_cache_dtype`.")] = "auto",
    weights_gb: Annotated[
        float | None, typer.Option(min=0, help="Size of the model's weights in GB.")
    ] = None,
    engine_tokens: Annotated[
        int | None, typer.Option(min=1, help="Room of a decode engine, as its log says.")
    ] = None,
    answer: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 300,
    tpot_ms: Annotated[float, typer.Option(min=0, help="Milliseconds for each of them.")] = 20.0,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="As `decode.max_num_seqs`.")] = 64,
    simulate: Annotated[
        int, typer.Option(min=0, help="Sessions to simulate at most; 0: formulas only.")
    ] = 20_000,
    json: options.Json = False,
) -> None:
    """Say how many prefill and decode hosts, routers and how much store some traffic needs.

    What it assumes is listed. The memory that retained conversations take is computed, and checked
    by a simulation.

    Exit status 0: planned. 2: the model or a conversation does not fit on such a host.
    """
    from pdctl.analyze.fleet import Load, TooSmallError, plan_fleet
    from pdctl.engine.kv_arithmetic import UnknownModelError

    load = Load(
        sessions,
        seconds(turn_gap, "--turn-gap"),
        context,
        min(answer, context - 1),
        tpot_ms,
        None if ttl is None else seconds(ttl, "--ttl"),
    )
    if load.gap <= 0:
        raise UsageError("a gap of no time leaves nothing to keep", where="--turn-gap")
    try:
        site = _site(
            model,
            host,
            tensor_parallel,
            kv_dtype,
            weights_gb,
            engine_tokens,
            max_num_seqs,
        )
        with no_cycles():
            fleet = plan_fleet(load, site, simulate_sessions=simulate)
    except UnknownModelError as error:
        raise UsageError(f"KV of this model cannot be computed: {error}", where=model) from None
    except TooSmallError as error:
        raise UsageError(
            str(error),
            where="--host",
            hints=["try a larger `--tensor-parallel`, or another `--host`"],
        ) from None
    if json:
        ui.json({"model": model} | fleet.as_dict())
    else:
        _show(fleet, model, load)


def _site(
    model: str,
    host: str,
    tensor_parallel: int | None,
    kv_dtype: str,
    weights_gb: float | None,
    engine_tokens: int | None,
    max_num_seqs: int,
) -> "Site":
    from pdctl.analyze.fleet import Site
    from pdctl.analyze.speed import CURVES
    from pdctl.base.prices import HOSTS
    from pdctl.engine.kv_arithmetic import kv_model

    if host not in HOSTS:
        raise UsageError(
            f"`{host}` is no type that is known here", where="--host", expected=", ".join(HOSTS)
        )
    found = named_model(model)
    weights = found.weight_bytes if weights_gb is None else int(weights_gb * 1e9)
    if weights is None and engine_tokens is None:
        raise UsageError(
            "how large the model's weights are is not known",
            where=model,
            hints=["add `--weights-gb`, or `--engine-tokens` as the engine's log says"],
        )
    curves = {curve.name: curve for curve in CURVES}
    gpus = tensor_parallel or HOSTS[host].gpus
    return Site(
        model=kv_model(found.config, kv_dtype=kv_dtype, tensor_parallel=gpus),
        weights=weights or 0,
        host=HOSTS[host],
        type=host,
        curve=curves[found.curve or "Qwen3-32B"],
        max_num_seqs=max_num_seqs,
        capacity=engine_tokens,
    )


def _show(fleet: "Fleet", model: str, load: "Load") -> None:
    import textwrap

    from pdctl.base.durations import format_duration

    line = ui.writer()
    decode, prefill = fleet.decode, fleet.prefill
    used = f"cache {decode['used_share']:.0%} full; bound by {decode['bound_by']}"
    rows: list[list[object]] = [
        [
            "prefill hosts",
            f"{prefill['hosts']} × {fleet.host_type}",
            f"busy {prefill['busy_share']:.0%}",
        ],
        ["decode hosts", f"{decode['hosts']} × {fleet.host_type}", used],
        ["routers", fleet.routers, f"{fleet.turns_per_s:,.1f} turns/s"],
        ["store", f"{fleet.store['mib']:,} MiB", f"{fleet.store['handles']:,} handles"],
        ["cost", _cost(fleet), f"on demand, {fleet.cost['region']}, {fleet.cost['as_of']}"],
    ]
    line(f"{load.sessions:,} sessions, a turn {format_duration(load.gap)} after the last,")
    line(f"{load.context:,} tokens each, {model}:")
    line("")
    ui.table(["what", "how many", "why"], rows)
    line("")
    line(f"TTL                {format_duration(fleet.ttl_s)}: {fleet.hit_share:.1%} of turns reuse")
    line(f"retained           {fleet.retained_tokens:,} tokens, {fleet.retained_gib:,.1f} GiB")
    line(f"running            {fleet.running_tokens:,} tokens")
    if (done := fleet.simulated) is not None:
        told = f"{done.retained_tokens:,} tokens retained ({done.difference:+.1%})"
        line(f"simulated          {told}, {done.hit_share:.1%} reuse")
    line("")
    ui.table(
        ["TTL", "turns that reuse", "prefill hosts", "decode hosts"],
        [_alternative(each, fleet.ttl_s) for each in fleet.alternatives],
    )
    none = fleet.alternatives[0].hosts
    if none < fleet.hosts:
        line("")
        line(f"Without reuse {none} hosts would do: here reuse buys speed, not hosts.")
    line("")
    line("assumed:")
    for each in fleet.assumptions:
        for text in textwrap.wrap(each, 78, initial_indent="- ", subsequent_indent="  "):
            line(text)


def _alternative(choice: "Choice", chosen: float) -> list[object]:
    from pdctl.base.durations import format_duration

    name = format_duration(choice.ttl_s) if choice.ttl_s else "no reuse"
    mark = " <-" if choice.ttl_s == chosen else ""
    return [name + mark, f"{choice.hit_share:.1%}", choice.prefill_hosts, choice.decode_hosts]


def _cost(fleet: "Fleet") -> str:
    hourly = fleet.cost["hourly_usd"]
    return "no on-demand price" if hourly is None else f"${hourly:,.2f}/h"
