"""Which engines are replaced together, and in what order, so that others serve meanwhile. Pure.

What prefill and decode must have in common (FACTS: the exact vLLM version, the model, …) cannot
change engine by engine: an engine with the new would have nobody to work with. So such a change
goes by cells: a set of prefill and decode servers that is replaced together. Any other change goes
engine by engine, but those that have no other of their role to stand in are replaced at once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from pdctl.base.process import ProcessSpec
from pdctl.engine.owned import EQUAL_ENV, EQUAL_FLAGS
from pdctl.plan.differences import by_option
from pdctl.state.model import ProcessRecord

# What one role may not have for itself, besides what `extra_args` may have for both only.
_KIND_OPTIONS = frozenset(
    {
        "program",
        "--model",
        "--revision",
        "--dtype",
        "--quantization",
        "--kv-cache-dtype",
        "--max-model-len",
        "--block-size",
        "--attention-backend",
        "--chat-template",
        "--served-model-name",
        "--speculative-config",
        "--tensor-parallel-size",
        "--trust-remote-code",
        *(f"--{name}" for name in EQUAL_FLAGS),
    }
)
_KIND_ENV = EQUAL_ENV | {"VLLM_KV_CACHE_LAYOUT"}
_KV = "--kv-transfer-config"
_EXTRA = "kv_connector_extra_config"
_OWN_KV_KEYS = frozenset(
    {
        "engine_id",
        "kv_role",
        f"{_EXTRA}.decoder_kv_blocks_ttl",
        f"{_EXTRA}.kv_lease_duration",
        f"{_EXTRA}.kv_recompute_threshold",
    }
)


def changes_kind(record: ProcessRecord, spec: ProcessSpec) -> bool:
    """Whether an engine as configured could not work with engines as they run."""
    old, new = by_option(record.argv), by_option(spec.command.masked_argv())
    env = spec.command.masked_environ()
    return any(old.get(name) != new.get(name) for name in {*old, *new} if _is_of_kind(name)) or any(
        record.env.get(name) != env.get(name) for name in _KIND_ENV
    )


def _is_of_kind(name: str) -> bool:
    option, _, key = name.partition(" ")
    if option == _KV:
        return key not in _OWN_KV_KEYS
    return option.replace("--no-", "--", 1) in _KIND_OPTIONS


@dataclass(frozen=True)
class Member:
    """One engine of the configuration, as it is now.

    Attributes:
        cell: as the file says; engines of different cells never work together.
        generation: as the routers were told last; empty for most.
        serves: it answers, and requests may go there.
        replace: it has to be restarted.
        start: it has to be started, whether or not it was ended before.
        held: somebody drained it by hand, so it does not serve when it runs again.
        new_kind: what it shares with others changes.
        as_wanted: that is as configured already, in what was started or is about to be.
        places: host and port of each port that it has now; `wants`: those it is to have.
    """

    name: str
    role: str
    cell: str = ""
    generation: str = ""
    serves: bool = True
    replace: bool = False
    start: bool = False
    held: bool = False
    new_kind: bool = False
    as_wanted: bool = False
    places: frozenset[tuple[str, int]] = frozenset()
    wants: frozenset[tuple[str, int]] = frozenset()

    @property
    def moves(self) -> bool:
        """Whether it will be elsewhere than where the routers look for it."""
        return self.replace and self.places != self.wants

    @property
    def starts_first(self) -> bool:
        """Whether it will serve before anything is replaced."""
        return self.start and not self.replace and not self.held


@dataclass(frozen=True)
class Group:
    """Engines that are replaced together.

    Attributes:
        names: those that are replaced or started.
        cell: all that belong together, by name; the same where it does not go by cells.
        generation: what the routers are told of them; None leaves it.
        alone: what it means that nobody else serves meanwhile; None when others do.
    """

    names: tuple[str, ...]
    cell: tuple[str, ...]
    generation: str | None = None
    alone: str | None = None

    @property
    def label(self) -> str:
        """What its steps are called by."""
        return "+".join(self.names)


def groups_of(members: Sequence[Member], generation: str) -> tuple[Group, ...]:
    """What is replaced together, in order; nothing when nothing that runs has to be replaced.

    Args:
        members: all engines of the configuration.
        generation: a name for the engines as they are to be, if none is so yet.
    """
    if not any(member.replace for member in members):
        return ()
    if any(member.new_kind for member in members):
        kind = _kind_of(members, generation)
        starting = [m.name for m in members if m.start]
        found = [
            Group(tuple(name for name in cell if name in starting), cell, kind)
            for cell in _dead_first(members, cells_of(members))
            if set(cell) & set(starting)
        ]
    else:
        # What is down is started first, and stands in as well.
        members = [replace(m, serves=m.serves or m.starts_first) for m in members]
        found = [Group(names, names) for names in _singles(members)]
    return tuple(_judged(members, _joined(members, found)))


def cells_of(members: Sequence[Member]) -> list[tuple[str, ...]]:
    """The cells of the file; without any, as many as there can be."""
    labels = list(dict.fromkeys(member.cell for member in members))
    if labels != [""]:
        return [tuple(m.name for m in members if m.cell == label) for label in labels]
    roles: dict[str, list[str]] = {}
    for member in members:
        roles.setdefault(member.role, []).append(member.name)
    count = min(len(names) for names in roles.values()) if len(roles) > 1 else 1
    return [
        tuple(name for names in roles.values() for name in names[number::count])
        for number in range(count)
    ]


def _kind_of(members: Iterable[Member], generation: str) -> str:
    """That of an engine which is as configured already: an upgrade that goes on, or back."""
    done = [m for m in members if m.as_wanted and (m.serves or m.generation)]
    done.sort(key=lambda member: not member.serves)
    return done[0].generation if done else generation


def _dead_first(
    members: Sequence[Member], sets: Iterable[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    """Cells that serve nobody cost nobody anything."""
    serves = {m.name for m in members if m.serves}
    return sorted(sets, key=lambda names: sum(name in serves for name in names))


def _singles(members: Sequence[Member]) -> Iterator[tuple[str, ...]]:
    """One by one, those first that serve nobody as it is; together, those for which no other of
    their role can stand in."""
    replaced = sorted((m for m in members if m.replace), key=lambda member: member.serves)
    lone = tuple(m.name for m in replaced if not _stand_in(members, m))
    for member in replaced:
        if member.name not in lone:
            yield (member.name,)
        elif member.name == lone[0]:
            yield lone


def _stand_in(members: Iterable[Member], member: Member) -> bool:
    if member.moves:
        # The routers learn where it went when they are restarted, after all engines.
        return False
    # One that does not serve yet does so by then: it is started, admitted or replaced before.
    return any(
        other.role == member.role and not other.held and not other.moves
        for other in members
        if other.name != member.name
    )


def _joined(members: Sequence[Member], groups: Sequence[Group]) -> list[Group]:
    """Groups of which one needs a port that another has are one."""
    by_name = {member.name: member for member in members}
    found: list[Group] = []
    for group in groups:
        meets = [other for other in found if _meet(by_name, group, other)]
        names = tuple(name for each in (*meets, group) for name in each.names)
        cell = tuple(name for each in (*meets, group) for name in each.cell)
        found = [each for each in found if each not in meets]
        found.append(Group(names, cell, group.generation))
    return found


def _meet(by_name: Mapping[str, Member], one: Group, other: Group) -> bool:
    pairs = [(by_name[a], by_name[b]) for a, b in product(one.names, other.names)]
    return any(a.wants & b.places or a.places & b.wants for a, b in pairs)


def _judged(members: Sequence[Member], groups: Iterable[Group]) -> Iterator[Group]:
    """Say of each group who serves while it is replaced."""
    now = {member.name: member for member in members}
    generation = {member.name: member.generation for member in members}
    serving = {member.name for member in members if member.serves}
    for group in groups:
        rest = serving - set(group.cell)
        yield replace(group, alone=_alone(now, generation, serving, rest))
        for name in group.cell:
            if group.generation is not None:
                generation[name] = group.generation
        serving |= {n for n in group.cell if not (now[n].moves or now[n].held)}


def _alone(
    members: Mapping[str, Member],
    generation: Mapping[str, str],
    before: set[str],
    rest: set[str],
) -> str | None:
    def kinds(names: Iterable[str], role: str) -> set[tuple[str, str]]:
        return {(members[n].cell, generation[n]) for n in names if members[n].role == role}

    if not before:
        return None
    if kinds(rest, "prefill") & kinds(rest, "decode"):
        return None
    if kinds(rest, "decode"):
        return "decode computes prompts itself meanwhile, and nothing is reused"
    return "nothing can be served meanwhile: requests are answered with 503"
