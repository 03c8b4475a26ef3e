"""The numbers of the seed's script, computed as it does: everything in memory, line by line."""

import collections
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Naive:
    turns: int
    repeated: float | None
    late: float | None


def reprefill(text: str, ttl: float = 480) -> Naive:
    convs = collections.defaultdict(list)
    for line in text.splitlines():
        r = json.loads(line)
        convs[r["conversation_id"]].append((r["ts"], r["prompt_tokens"]))
    prompt_total = repeated = turns = late = 0
    for rows in convs.values():
        rows.sort()
        for (prev_ts, prev_tok), (ts, tok) in zip(rows, rows[1:]):  # noqa: B905, RUF007
            turns += 1
            prompt_total += tok
            repeated += min(prev_tok, tok)
            if ts - prev_ts > ttl:
                late += 1
    return Naive(
        turns,
        repeated / prompt_total if prompt_total else None,
        late / turns if turns else None,
    )
