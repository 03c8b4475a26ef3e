"""Does pdctl's client measure what vLLM's own multi-turn benchmark measures?

The same conversations go through the same router in turn, by vLLM's tool and by the client that
`pdctl bench` uses, as chats, one request at a time. Each run has conversations of its own, so that
no cache helps the second one. Medians of the time to first token of all turns are compared.

usage: python benchmarks/multi_turn_agreement.py ROUTER MODEL TOOL PYTHON [REPEATS]
  ROUTER: its URL. MODEL: folder with the tokenizer. TOOL: benchmark_serving_multi_turn.py of vLLM's
  benchmarks/multi_turn. PYTHON: has what the tool needs (vllm, transformers, pandas).
"""

import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp

from pdctl.observe.turns import TurnRequest, send_turn
from pdctl.observe.verify import random_words

CONVERSATIONS, TURNS, FIRST_WORDS, WORDS, ANSWER = 4, 4, 500, 40, 24
Conversations = list[dict[str, Any]]


def conversations() -> Conversations:
    """Fresh ones, in the form that the tool reads; it replaces the answers by those it gets."""
    rng = random.SystemRandom()
    made = []
    for _ in range(CONVERSATIONS):
        messages = []
        for turn in range(TURNS):
            text = random_words(rng, FIRST_WORDS if turn == 0 else WORDS)
            messages += [
                {"role": "user", "content": text},
                {"role": "assistant", "content": "x"},
            ]
        made.append({"id": uuid.uuid4().hex, "messages": messages})
    return made


def by_vllm(router: str, name: str, model: str, tool: str, python: str) -> list[float]:
    """Times to first token as vLLM's tool writes them down, in ms."""
    with tempfile.TemporaryDirectory() as folder:
        asked, said = Path(folder) / "in.json", Path(folder) / "out.json"
        asked.write_text(json.dumps(conversations()))
        command = [
            *(python, tool, "--url", router, "--model", model, "--served-model-name", name),
            *("--input-file", str(asked), "--stats-json-output", str(said)),
            *("--num-clients", "1", "--send-conversation-id"),
            *("--limit-min-tokens", str(ANSWER), "--limit-max-tokens", str(ANSWER)),
        ]
        done = subprocess.run(command, cwd=Path(tool).parent, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
        return [row["ttft_ms"] for row in json.loads(said.read_text())]


def by_pdctl(router: str, name: str) -> list[float]:
    """The same by pdctl's client."""

    async def play() -> list[float]:
        times = []
        async with aiohttp.ClientSession() as session:
            for each in conversations():
                history: list[dict[str, str]] = []
                for message in each["messages"][::2]:
                    history.append(message)
                    turn = await send_turn(
                        session,
                        router,
                        TurnRequest(
                            model=name,
                            messages=history,
                            max_tokens=ANSWER,
                            conversation_id=each["id"],
                            # The tool leaves the temperature to the server.
                            extra={"temperature": 1.0},
                        ),
                    )
                    assert turn.ok, turn.error_text
                    if turn.ttft_s is not None:
                        times.append(turn.ttft_s * 1000)
                    history.append({"role": "assistant", "content": turn.text})
        return times

    return asyncio.run(play())


def main() -> None:
    router, model, tool, python, *more = sys.argv[1:]
    with urllib.request.urlopen(f"{router}/v1/models", timeout=10) as answer:
        name = json.load(answer)["data"][0]["id"]
    runs: dict[str, Callable[[], list[float]]] = {
        "vLLM's tool": lambda: by_vllm(router, name, model, tool, python),
        "pdctl": lambda: by_pdctl(router, name),
    }
    taken: dict[str, list[float]] = {each: [] for each in runs}
    by_pdctl(router, name)  # what is made at first use is made now
    for repeat in range(int(more[0]) if more else 5):
        order = list(runs) if repeat % 2 else list(runs)[::-1]
        for each in order:
            times = runs[each]() or runs[each]()  # the tool gives up at an answer without text
            taken[each] += times
            print(f"{repeat + 1} {each:<12} {statistics.median(times):8.1f} ms, {len(times)} turns")
    theirs, ours = (statistics.median(times) for times in taken.values())
    print(
        f"medians: {theirs:.1f} ms and {ours:.1f} ms, ratio {ours / theirs:.3f} (bar: 0.9 to 1.1)"
    )


if __name__ == "__main__":
    main()
