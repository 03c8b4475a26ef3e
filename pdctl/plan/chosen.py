"""What a start chooses: ports where the configuration says 0, and an id for every engine start.

A process that runs keeps what it was started with, so that the same configuration renders to the
same commands. One that starts gets a new id, always (FACTS T2).
"""

from collections.abc import Callable, Collection
from dataclasses import replace

from pdctl.base.process import ProcessSpec
from pdctl.render.model import Chosen
from pdctl.state.model import DeploymentState

ChoosePort = Callable[[ProcessSpec], int]
NewId = Callable[[ProcessSpec], str | None]
"""None where another one makes an id at every start."""


def kept(
    shown: Collection[ProcessSpec],
    state: DeploymentState | None,
    *,
    not_again: Collection[str] = (),
) -> Chosen:
    """What earlier starts chose and what still holds.

    Args:
        shown: the processes as rendered without any choice.
        state: what was recorded, or None.
        not_again: processes whose recorded ports somebody else holds by now.
    """
    records = state.processes if state else {}
    known = [spec for spec in shown if spec.name in records]
    reusable = [spec for spec in known if spec.name not in not_again]
    return Chosen(
        ports={s.name: records[s.name].port for s in reusable if s.port == 0},
        side_channel_ports={
            spec.name: port
            for spec in reusable
            if spec.side_channel_port == 0
            and (port := records[spec.name].side_channel_port) is not None
        },
        engine_ids={
            spec.name: engine_id
            for spec in known
            if (engine_id := records[spec.name].engine_id) is not None
        },
    )


def completed(
    chosen: Chosen,
    shown: Collection[ProcessSpec],
    starting: Collection[str],
    *,
    choose_port: ChoosePort,
    new_id: NewId,
) -> Chosen:
    """The same with everything chosen that `starting` needs; ports differ from each other."""
    ports, side = dict(chosen.ports), dict(chosen.side_channel_ports)
    taken = {p for s in shown for p in (s.port, s.side_channel_port) if p}
    taken |= set(ports.values()) | set(side.values())
    for spec in shown:
        if spec.port == 0 and spec.name not in ports:
            ports[spec.name] = _another(spec, taken, choose_port)
        if spec.side_channel_port == 0 and spec.name not in side:
            side[spec.name] = _another(spec, taken, choose_port)
    ids = {name: old for name, old in chosen.engine_ids.items() if name not in starting}
    engines = [spec for spec in shown if spec.name in starting and spec.role != "router"]
    ids |= {spec.name: fresh for spec in engines if (fresh := new_id(spec)) is not None}
    return replace(chosen, ports=ports, side_channel_ports=side, engine_ids=ids)


def _another(spec: ProcessSpec, taken: set[int], choose_port: ChoosePort) -> int:
    port = choose_port(spec)
    while port in taken:
        port = choose_port(spec)
    taken.add(port)
    return port
