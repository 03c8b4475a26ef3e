"""Make examples/requests.jsonl: a synthetic request log of a coding agent, in the router's fields.

    python examples/make_requests.py > examples/requests.jsonl

Nothing in it was measured. Tools answer within seconds, people within minutes, and now and then
somebody goes to lunch. Times to the first token follow the published curve of Qwen3-32B with reuse
off, so it is a log from before anything was switched on.
"""

import json
import random

SESSIONS = 60
START = 1_790_000_000.0


def session(chance: random.Random, number: int) -> list[dict[str, object]]:
    """One conversation: turns that each send all of the ones before."""
    at, history, rows = START + chance.random() * 2400, 1800 + chance.randrange(1200), []
    for _ in range(chance.randrange(4, 22)):
        history += chance.randrange(80, 900)
        answer = chance.randrange(60, 500)
        ttft = 101.6 + 0.0282 * history
        total = ttft + answer * 18
        rows.append(
            {
                "conversation_id": f"agent-{number:02}",
                "ts": round(at, 3),
                "prompt_tokens": history,
                "output_tokens": answer,
                "reused_tokens": 0,
                "ttft_ms": round(ttft, 1),
                "total_ms": round(total, 1),
            }
        )
        history += answer
        kind = chance.random()
        pause = chance.expovariate(1 / 6) if kind < 0.75 else chance.expovariate(1 / 90)
        at += total / 1000 + (pause if kind < 0.97 else 1500 + chance.random() * 1500)
    return rows


def main() -> None:
    """Print the log in order of time."""
    chance = random.Random(7)
    rows = [row for number in range(SESSIONS) for row in session(chance, number)]
    for row in sorted(rows, key=lambda row: float(str(row["ts"]))):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
