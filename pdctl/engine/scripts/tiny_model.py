"""Write one of pdctl's offline models: a random Qwen3 with a byte-level BPE tokenizer.

Usage: python -I tiny_model.py --out DIR [--size tiny|small]

Standard library only, and no floating-point function whose last bit depends on the machine: every
run anywhere gives the same bytes. `tiny`: 2.6 M parameters, 5 MB, about a second, to try and to
test. `small`: 74 M, 148 MB, large enough that prefill takes its time on a CPU, to measure. The
weights are far apart (0.25) because a model with small random weights repeats one token. The chat
template knows system messages, tools, tool calls and reasoning the way Qwen3's does, so that these
can be tested.
"""

import argparse
import array
import hashlib
import itertools
import json
import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter, namedtuple
from collections.abc import Iterator

SEED = 0
HEAD_DIM, VOCABULARY = 64, 512
SPREAD = 0.25

# Id, text, and whether decoding leaves it out. What a client parses must stay in the text.
ADDED = (
    ("<|endoftext|>", True),
    ("<|im_start|>", True),
    ("<|im_end|>", True),
    ("<think>", False),
    ("</think>", False),
    ("<tool_call>", False),
    ("</tool_call>", False),
)
END_OF_TEXT, END_OF_TURN = 0, 2

Size = namedtuple("Size", "hidden intermediate layers heads kv_heads weights")
"""Of a model; `weights` makes so many of them."""

CORPUS = """
the quick brown fox jumps over the lazy dog while the other dogs sleep in the warm sun. a prefill
server reads the prompt of each request and computes the keys and values of all its tokens; a
decode server takes them over and writes the answer, one token after another. when a conversation
goes on, most of the next prompt is what was said before, and its keys and values are still there,
on the decode server, for some minutes. reading them back is faster than computing them again.
that is what this small model is for: it knows nothing, it says nothing that makes sense, but it
runs through the same code as a large one, on any machine, without a network. once upon a time
there was a little engine that could not stop talking. it talked about numbers such as 1, 2, 3, 10,
100 and 1000, about names, places, colours, rivers, mountains, letters and words. everyone who
listened asked the same question again: what does it mean? nothing at all, said the engine, and
went on. {"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}} is how a tool
is called, {"type": "object", "properties": {}, "required": []} is how one is described.
"""

CHAT_TEMPLATE = """\
{%- macro text(content) -%}
{%- if content is string -%}{{ content }}
{%- elif content -%}
{%- for part in content -%}{{ part['text'] if part['type'] == 'text' else '' }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro spoken(content) -%}
{%- set said = text(content) -%}
{{ said if preserve_thinking else said.split('</think>')[-1].lstrip('\\n') }}
{%- endmacro -%}
{%- set system = messages[0] if messages and messages[0]['role'] == 'system' else none -%}
{%- if tools %}
{{- '<|im_start|>system\\n' }}
{%- if system %}{{ text(system['content']) + '\\n\\n' }}{% endif %}
{{- '# Tools\\n\\nCall a function by writing ' }}
{{- '<tool_call>{"name": ..., "arguments": ...}</tool_call>.' }}
{{- '\\n\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{{- '\\n</tools><|im_end|>\\n' }}
{%- elif system %}
{{- '<|im_start|>system\\n' + text(system['content']) + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message['role'] == 'system' and loop.first %}
{%- elif message['role'] == 'assistant' %}
{{- '<|im_start|>assistant\\n' }}
{%- set thought = message.get('reasoning') or message.get('reasoning_content') %}
{%- if thought and preserve_thinking %}{{ '<think>\\n' + thought + '\\n</think>\\n\\n' }}{% endif %}
{%- set said = spoken(message.get('content')) %}
{{- said }}
{%- for call in message.get('tool_calls') or [] %}
{%- set function = call['function'] if 'function' in call else call %}
{%- set arguments = function['arguments'] %}
{{- '\\n' if said or not loop.first else '' }}
{{- '<tool_call>\\n{"name": ' + (function['name'] | tojson) + ', "arguments": ' }}
{{- arguments if arguments is string else (arguments | tojson) }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message['role'] == 'tool' %}
{{- '<|im_start|>user\\n<tool_response>\\n' + text(message['content']) + '\\n</tool_response>' }}
{{- '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>' + message['role'] + '\\n' + text(message['content']) + '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and not enable_thinking %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}
{%- endif %}
"""


def config(size: str = "tiny") -> dict[str, object]:
    """Give the model's config.json."""
    of = SIZES[size]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "dtype": "bfloat16",
        "eos_token_id": END_OF_TURN,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": of.hidden,
        "initializer_range": SPREAD,
        "intermediate_size": of.intermediate,
        "max_position_embeddings": 32768,
        "max_window_layers": of.layers,
        "model_type": "qwen3",
        "num_attention_heads": of.heads,
        "num_hidden_layers": of.layers,
        "num_key_value_heads": of.kv_heads,
        "pad_token_id": END_OF_TEXT,
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": VOCABULARY,
    }


def shapes(size: str = "tiny") -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name every tensor with its shape, in the order of the file."""
    hidden, intermediate, layers, heads, kv_heads, _ = SIZES[size]
    yield "lm_head.weight", (VOCABULARY, hidden)
    yield "model.embed_tokens.weight", (VOCABULARY, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.mlp.down_proj.weight", (hidden, intermediate)
        yield f"{prefix}.mlp.gate_proj.weight", (intermediate, hidden)
        yield f"{prefix}.mlp.up_proj.weight", (intermediate, hidden)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        yield f"{prefix}.self_attn.k_norm.weight", (HEAD_DIM,)
        yield f"{prefix}.self_attn.k_proj.weight", (kv_heads * HEAD_DIM, hidden)
        yield f"{prefix}.self_attn.o_proj.weight", (hidden, heads * HEAD_DIM)
        yield f"{prefix}.self_attn.q_norm.weight", (HEAD_DIM,)
        yield f"{prefix}.self_attn.q_proj.weight", (heads * HEAD_DIM, hidden)
        yield f"{prefix}.self_attn.v_proj.weight", (kv_heads * HEAD_DIM, hidden)
    yield "model.norm.weight", (hidden,)


def weights(size: str = "tiny") -> bytes:
    """Give model.safetensors: norms of one, everything else random, in bfloat16."""
    source = random.Random(SEED)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    tensors: list[bytes] = []
    position = 0
    for name, shape in shapes(size):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        data = _bfloat16([1.0] * count) if "norm" in name else SIZES[size].weights(source, count)
        end = position + len(data)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [position, end]}
        tensors.append(data)
        position = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head + b"".join(tensors)


def _spread(source: random.Random, count: int) -> bytes:
    # The sum of four uniform numbers is close enough to normal, and exact on every machine.
    raw = array.array("H")
    raw.frombytes(source.randbytes(8 * count))
    if sys.byteorder == "big":
        raw.byteswap()
    scale = SPREAD / 37837.0  # the standard deviation of that sum
    pairs = zip(raw[0::4], raw[1::4], raw[2::4], raw[3::4], strict=True)
    return _bfloat16([(a + b + c + d - 131070) * scale for a, b, c, d in pairs])


def _even(source: random.Random, count: int) -> bytes:
    # Each one of 256 values, all as likely: a byte a weight, and no arithmetic on 74 M of them.
    values = _bfloat16([(step - 127.5) * (SPREAD * 1.732 / 128) for step in range(256)])
    raw = source.randbytes(count)
    made = bytearray(2 * count)
    made[0::2], made[1::2] = raw.translate(values[0::2]), raw.translate(values[1::2])
    return bytes(made)


def _bfloat16(values: list[float]) -> bytes:
    wide = array.array("f", values)
    if sys.byteorder == "big":
        wide.byteswap()
    raw = wide.tobytes()
    narrow = bytearray(len(raw) // 2)
    narrow[0::2], narrow[1::2] = raw[2::4], raw[3::4]
    return bytes(narrow)


SIZES = {
    "tiny": Size(256, 512, 4, 4, 2, _spread),
    "small": Size(768, 2048, 12, 12, 2, _even),
}


def tokenizer() -> dict[str, object]:
    """Give tokenizer.json: all bytes, and merges learnt from the corpus until 512 tokens."""
    alphabet = byte_alphabet()
    tokens = [text for text, _ in ADDED] + [alphabet[byte] for byte in sorted(alphabet)]
    merges = learn_merges(alphabet, VOCABULARY - len(tokens))
    tokens += [left + right for left, right in merges]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": index,
                "content": text,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
            for index, (text, special) in enumerate(ADDED)
        ],
        "normalizer": None,
        "pre_tokenizer": _byte_level(add_prefix_space=False),
        "post_processor": None,
        "decoder": _byte_level(add_prefix_space=True),
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {text: index for index, text in enumerate(tokens)},
            "merges": [f"{left} {right}" for left, right in merges],
        },
    }


def _byte_level(*, add_prefix_space: bool) -> dict[str, object]:
    return {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": True,
    }


def byte_alphabet() -> dict[int, str]:
    """Give the visible character that stands for each byte, as in GPT-2."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {byte: chr(byte) for byte in visible}
    hidden = (byte for byte in range(256) if byte not in alphabet)
    alphabet.update({byte: chr(256 + index) for index, byte in enumerate(hidden)})
    return alphabet


def learn_merges(alphabet: dict[int, str], count: int) -> list[tuple[str, str]]:
    """Give the pairs to merge, most frequent first; ties go by the alphabet."""
    pieces = re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+", CORPUS)
    frequency = Counter(pieces)
    words = [
        ([alphabet[byte] for byte in piece.encode()], times)
        for piece, times in sorted(frequency.items())
    ]
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for symbols, times in words:
            for pair in itertools.pairwise(symbols):
                pairs[pair] += times
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        words = [(_merged(symbols, best), times) for symbols, times in words]
    return merges


def _merged(symbols: list[str], pair: tuple[str, str]) -> list[str]:
    result: list[str] = []
    index = 0
    while index < len(symbols):
        if tuple(symbols[index : index + 2]) == pair:
            result.append(pair[0] + pair[1])
            index += 2
        else:
            result.append(symbols[index])
            index += 1
    return result


def files(size: str = "tiny") -> dict[str, bytes]:
    """Give every file of the model by name."""
    made = {
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
        "config.json": _json(config(size)),
        "generation_config.json": _json(
            {"eos_token_id": [END_OF_TURN, END_OF_TEXT], "pad_token_id": END_OF_TEXT}
        ),
        "model.safetensors": weights(size),
        "tokenizer.json": _json(tokenizer()),
        "tokenizer_config.json": _json(
            {
                "clean_up_tokenization_spaces": False,
                "eos_token": "<|im_end|>",
                "model_max_length": 32768,
                "pad_token": "<|endoftext|>",
                "tokenizer_class": "PreTrainedTokenizerFast",
            }
        ),
    }
    sums = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in made.items()
    )
    return {**made, "SHA256SUMS": sums.encode()}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()


def write(out: str, size: str = "tiny") -> None:
    """Put the model at `out`, whole or not at all; what is there and differs is replaced."""
    made = files(size)
    if _intact(out, made):
        return
    parent = os.path.dirname(os.path.abspath(out))
    os.makedirs(parent, exist_ok=True)
    scratch = tempfile.mkdtemp(prefix=".tiny-", dir=parent)
    try:
        new = os.path.join(scratch, "new")
        os.mkdir(new)
        for name, content in made.items():
            with open(os.path.join(new, name), "wb") as file:
                file.write(content)
        if os.path.lexists(out):
            os.rename(out, os.path.join(scratch, "old"))
        os.rename(new, out)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _intact(out: str, made: dict[str, bytes]) -> bool:
    for name, content in made.items():
        try:
            with open(os.path.join(out, name), "rb") as file:
                if file.read() != content:
                    return False
        except OSError:
            return False
    return True


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Write one of pdctl's offline models.")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--size", choices=tuple(SIZES), default="tiny")
    asked = parser.parse_args()
    write(asked.out, asked.size)


if __name__ == "__main__":
    main()
