"""Handles as they come out of decode's answers, to fill stores with."""

import random
import time
from array import array

from pdctl.router import match
from pdctl.router.handle import Conversation, Handle, Scope

SCOPE = Scope("", "model", "")
BLOCK = 16
VOCABULARY = 150_000


def ids(seed: int, count: int) -> bytes:
    """Packed random tokens, the same for the same seed."""
    chance = random.Random(seed)
    return array("I", (chance.randrange(VOCABULARY) for _ in range(count))).tobytes()


def conversation(number: int) -> Conversation:
    """One that has no name."""
    return Conversation(anchor=f"{number:032x}")


def handle(number: int, tokens: bytes) -> Handle:
    """What is kept of a turn: its own tokens, and parameters as vLLM gives them."""
    length, first = match.count(tokens), random.Random(number).randrange(1_000_000)
    params = {
        "do_remote_prefill": False,
        "do_remote_decode": True,
        "remote_block_ids": [list(range(first, first + -(-length // BLOCK)))],
        "remote_engine_id": "pair-decode-0-0123456789abcdef",
        "remote_request_id": f"chatcmpl-{number:032x}",
        "remote_host": "10.0.0.2",
        "remote_port": 5600,
        "tp_size": 1,
        "dcp_size": 1,
        "pp_size": 1,
        "remote_num_tokens": length - 1,
        "remote_blocks_expiry_time": 12345.678,
        "transfer_mode": "pull",
    }
    return Handle.of(
        params,
        scope=SCOPE,
        conversation=conversation(number),
        decode="http://10.0.0.2:8200",
        prefill="http://10.0.0.1:8100",
        held=match.Retained(tokens, length - 1),
        block_size=BLOCK,
        deadline=time.monotonic() + 10_000,
    )
