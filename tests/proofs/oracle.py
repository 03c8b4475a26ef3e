"""The most that any router could have reused in a session, worked out afterwards.

It knows the whole session, the future too. What binds it is what binds any router:

- a handle comes into being when a turn ends, and lasts for the TTL that was in force then;
- it serves one later turn at most, and a turn has one handle at most;
- it serves only its own tenant, and only while its decode engine lives;
- it is good for the tokens with which it and the prompt begin alike, but not for the last generated
  token, which has no KV yet, nor for the prompt's last, which has to be computed;
- fewer tokens than the threshold are not pulled.

Names of conversations do not matter to it, nor what a good router would not do: it takes a handle
of a stranger for a system prompt that both begin with, if nobody needs that handle later. So to
come near it is to decide nearly as well as one who knows the future.

Prefill's own prefix cache, where it is on, has whole blocks of all prompts that prefill saw, for
every tenant. It is taken as never evicting. A pull then counts for what it brings beyond that.

The best plan is a maximum-weight matching of handles with turns (scipy's, rather than one of our
own: the oracle must not be what is wrong). Decode's capacity is no part of it; `peak_tokens` tells
what the plan needs at once, so that a test can see that capacity did not bind.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment


@dataclass(frozen=True)
class Past:
    """A turn that was played. Times are seconds on one clock.

    Attributes:
        tenant: whose it was.
        prompt, generated: token ids.
        sent: when the client sent it.
        ended: when the client had it all; None when it did not wait, so that nothing was kept.
        ttl: for how long a router may offer what it left.
        era: number of the start of the decode engine that served it.
    """

    tenant: str
    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    sent: float
    ended: float | None
    ttl: float
    era: int = 0


@dataclass(frozen=True)
class Share:
    """What one turn gets in the best plan.

    Attributes:
        own: tokens that prefill's own cache has.
        pulled: tokens that come from decode beyond those.
        source: index of the turn whose handle serves it; None when none does.
    """

    own: int = 0
    pulled: int = 0
    source: int | None = None

    @property
    def tokens(self) -> int:
        """Tokens that need not be computed."""
        return self.own + self.pulled


def best_plan(
    turns: Sequence[Past], *, threshold: int, own_cache_block: int | None = None, slack: float = 0.0
) -> list[Share]:
    """Who should have used whose handle.

    Args:
        threshold: fewest tokens that are worth a pull.
        own_cache_block: tokens in a block of prefill's own prefix cache; None when it is off.
        slack: seconds at the end of a TTL in which a handle counts as gone already, since a
            client's clock does not see exactly what the router's does.
    """
    count = len(turns)
    prompts = [np.array(turn.prompt) for turn in turns]
    held = [np.array(turn.prompt + turn.generated) for turn in turns]
    own = [0] * count
    if own_cache_block:
        own = [_own(turns, prompts, index, own_cache_block) for index in range(count)]
    gains = np.zeros((count, count))
    for source in range(count):
        for user in range(count):
            if _may_use(turns[source], turns[user], slack):
                gain = reusable(held[source], prompts[user]) - own[user]
                gains[source, user] = gain if gain >= max(1, threshold) else 0
    plan = [Share(own[user]) for user in range(count)]
    for source, user in zip(*linear_sum_assignment(gains, maximize=True), strict=True):
        if gains[source, user] > 0:
            plan[user] = Share(own[user], int(gains[source, user]), int(source))
    return plan


def reusable(held: np.ndarray, prompt: np.ndarray) -> int:
    """Tokens of a prompt of which a turn that ended with `held` has left KV for sure."""
    return max(0, min(common_prefix(held, prompt), len(held) - 1, len(prompt) - 1))


def common_prefix(left: np.ndarray, right: np.ndarray) -> int:
    """With how many equal tokens both begin."""
    length = min(len(left), len(right))
    different = left[:length] != right[:length]
    return int(different.argmax()) if different.any() else length


def peak_tokens(turns: Sequence[Past], plan: Sequence[Share]) -> int:
    """The most tokens that decode has to keep at one time for a plan."""
    changes = []
    for user, share in enumerate(plan):
        if share.source is None:
            continue
        source = turns[share.source]
        assert source.ended is not None
        held = len(source.prompt) + len(source.generated)
        changes += [(source.ended, held), (turns[user].sent, -held)]
    peak = now = 0
    for _, change in sorted(changes):
        now += change
        peak = max(peak, now)
    return peak


def _may_use(source: Past, user: Past, slack: float) -> bool:
    return (
        source.ended is not None
        and source.tenant == user.tenant
        and source.era == user.era
        and source.ended <= user.sent < source.ended + source.ttl - slack
    )


def _own(turns: Sequence[Past], prompts: Sequence[np.ndarray], user: int, block: int) -> int:
    """What prefill may have of a prompt from those sent before it, in whole blocks."""
    mine = prompts[user]
    equal = max(
        (
            common_prefix(prompt, mine)
            for turn, prompt in zip(turns, prompts, strict=True)
            if turn.sent < turns[user].sent
        ),
        default=0,
    )
    return min(equal, len(mine) - 1) // block * block
