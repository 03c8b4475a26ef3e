"""Which network interfaces go with an instance type, and what is wrong with those there are. Pure.

The rules are of the EC2 User Guide (efa-acc-inst-types, create-efa): the first interface is not
`efa-only`, a card has one EFA at most, device indices count within a card.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from pdctl.base.awsfacts import AwsInterface, AwsType


def wanted_interfaces(kind: AwsType) -> tuple[tuple[int, int, str], ...]:
    """The layout that AWS recommends, as (card, device, kind): one address, all EFA there is."""
    found = [(0, 0, "interface")]
    for card in sorted(kind.cards, key=lambda each: each.index):
        if "efa-only" not in card.kinds:
            continue
        device = 1 if card.index == 0 else 0
        if device < card.interfaces:
            found.append((card.index, device, "efa-only"))
    return tuple(found)


def wrong_interfaces(interfaces: Sequence[AwsInterface], kind: AwsType | None) -> Iterator[str]:
    """What breaks a rule, in sentences; EC2 refuses most of it at launch."""
    for each in interfaces:
        if each.primary and each.kind == "efa-only":
            yield f"{each.id}: the first interface is efa-only, which has no address"
    on_card = Counter(each.card for each in interfaces if each.efa)
    for card, count in sorted(on_card.items()):
        if count > 1:
            yield f"card {card} has {count} EFA interfaces, a card takes one"
    if kind is not None:
        yield from _against_type(interfaces, kind)


def _against_type(interfaces: Sequence[AwsInterface], kind: AwsType) -> Iterator[str]:
    cards = {card.index: card for card in kind.cards}
    for each in interfaces:
        card = cards.get(each.card)
        if card is None:
            if cards:
                yield f"{each.id}: {kind.name} has no card {each.card}"
            continue
        if each.device >= card.interfaces:
            yield (
                f"{each.id}: device {each.device} on card {each.card}, which takes "
                f"{card.interfaces} interfaces"
            )
        if each.efa and card.kinds and each.kind not in card.kinds:
            yield f"{each.id}: card {each.card} of {kind.name} takes no {each.kind} interface"
