"""A run made by hand."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pdctl.bench import files
from pdctl.bench.rows import CellRow, Leg, TurnRow, cell_key

ABOUT = {
    "name": "demo",
    "began_at": 1.76e9,
    "pdctl": "0.1.0",
    "python": "3.12.1",
    "platform": "Linux",
    "model": {"id": "a/model", "dtype": "bfloat16"},
    "nixl": "1.5.0",
    "target": "local",
    "transport": "UCX (tcp)",
    "decoder_ttl": 480,
    "settings": {
        "shape": {"conversations": 2, "turns": 3, "question": 150, "answer": 300, "clients": 2},
        "repeats": 2,
        "trace": "",
    },
    "groups": [{"prefix_caching": False, "engines": [{"name": "prefill-0", "vllm": "0.33.0"}]}],
    "processes": [{"name": "prefill-0", "host": "here", "argv": ["python", "--x"]}],
}


def turn(cell: str, conversation: int, number: int, ttft: float | None, **more: Any) -> TurnRow:
    on = cell.startswith("on")
    fields: dict[str, Any] = {
        "cell": cell,
        "attempt": 1,
        "conversation": conversation,
        "turn": number,
        "sent_at": 1.76e9,
        "late_ms": 0.0,
        "error": "",
        "ttft_ms": ttft,
        "tpot_ms": 10.0,
        "total_ms": 3000.0,
        "prompt_tokens": 2150,
        "output_tokens": 300,
        "reused_tokens": 2000 if on and number > 1 else 0,
        "outcome": "HIT" if on and number > 1 else "MISS",
        "reason": "continued" if on and number > 1 else "first_turn",
    }
    return TurnRow(**{**fields, **more})


def cell(leg: Leg, length: int, repeat: int, **more: Any) -> CellRow:
    on = leg.reuse == "on"
    prefill = {"ttft_s": 0.4, "compute_s": 0.3 if not on else 0.1, "transfer_s": 0.08 if on else 0}
    prefill |= {"bytes": 8e6 if on else 0.0, "pulled": 8000.0 if on else 0.0, "cached": 0.0}
    counted: Mapping[str, Any] = {
        "first": {"prefill": {}, "decode": {}},
        "later": {"prefill": prefill, "decode": {"bytes": 4e6, "transfer_s": 0.04}},
    }
    fields: dict[str, Any] = {
        "key": cell_key(leg, length, repeat),
        "attempt": 1,
        "reuse": leg.reuse,
        "caching": leg.caching,
        "length": length,
        "repeat": repeat,
        "complete": True,
        "began_at": 1.76e9,
        "seconds": 9.0,
        "counted": counted,
        "turns": {"first": 2, "later": 4, "all": 6},
        "pinned_tokens": 9000 if on else 0,
        "room_tokens": 100000,
        "settled_s": 0.2,
    }
    return CellRow(**{**fields, **more})


def write(path: Path, *, lengths: tuple[int, ...] = (2000, 8000), slow: float = 1.0) -> Path:
    """A folder with two repeats of both legs; off grows with the length, on stays flat."""
    folder = files.create(path, json.loads(json.dumps(ABOUT)))
    for repeat in (1, 2):
        for length in lengths:
            for leg in (Leg("off", False), Leg("on", False)):
                key = cell_key(leg, length, repeat)
                base = slow * (length / 10 if leg.reuse == "off" else 50 + length / 1000)
                for conversation in (0, 1):
                    for number in (1, 2, 3):
                        cold = slow * length / 10 if number == 1 else base
                        ttft = cold + conversation + repeat + number / 8
                        folder.add_turn(turn(key, conversation, number, ttft))
                folder.add_cell(cell(leg, length, repeat))
    return path
