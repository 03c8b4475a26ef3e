"""The model that pdctl makes: always the same bytes, whole or not at all, and a usable template."""

import hashlib
import json
import math
import struct
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import jinja2
import pytest

from pdctl.engine.models import built_in_dir, built_in_step
from pdctl.engine.scripts import tiny_model

SMALL = "bd8f055edc6733e44442faec2cd0a5b64181152d0f8b8f1e064110599ffa5cd7"
"""SHA-256 of the weights."""


@pytest.fixture(scope="module")
def made() -> dict[str, bytes]:
    return tiny_model.files()


def test_the_same_bytes_everywhere(made: dict[str, bytes]) -> None:
    # Of this very script. A new script makes a folder of another name, so change these together.
    assert made["SHA256SUMS"].decode().split()[::2] == [
        "c2eb79c646681031c8439f7c5b953140041f5f2a28f17411f0fe55f224c9861f",
        "09eea8acdfdd0ec54e3fe3f21cfc42332bd8b6320d35b578164d214f4bf0db58",
        "c40e9d09e38f03e48d45219dd76b7e098d182d89c7e075c9838e146e047dcf06",
        "ed6eba671e4bdec8bcaf5d9b5a1bed59cb7a6b5495077df28362eedfa0bd7c60",
        "db9ad1273d058e18a962cdb3f100198df14be34d0f1847bdffa88a70acba8131",
        "39a7df5c8040824f38c72deb3d2cd34865730f2a800c16c58fbd88ca4288fa01",
    ]


def test_small(made: dict[str, bytes]) -> None:
    assert 5_000_000 < sum(map(len, made.values())) < 5_500_000


def test_weights_are_a_whole_safetensors_file(made: dict[str, bytes]) -> None:
    raw = made["model.safetensors"]
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    del header["__metadata__"]
    end = 0
    for name, (start, stop) in ((n, t["data_offsets"]) for n, t in header.items()):
        rows, *columns = header[name]["shape"]
        assert start == end
        assert stop - start == 2 * rows * (columns[0] if columns else 1)
        end = stop
    assert 8 + length + end == len(raw)
    assert length % 8 == 0


def test_weights_are_spread_as_meant(made: dict[str, bytes]) -> None:
    raw = made["model.safetensors"]
    (length,) = struct.unpack("<Q", raw[:8])
    first = raw[8 + length : 8 + length + 2 * 512 * 256]
    wide = b"".join(b"\0\0" + first[i : i + 2] for i in range(0, len(first), 2))
    values = struct.unpack(f"<{len(wide) // 4}f", wide)
    mean = sum(values) / len(values)
    deviation = (sum(value * value for value in values) / len(values)) ** 0.5
    assert abs(mean) < 0.005
    assert 0.24 < deviation < 0.26


def test_tokenizer_has_every_byte_and_512_tokens(made: dict[str, bytes]) -> None:
    model = json.loads(made["tokenizer.json"])["model"]
    assert sorted(model["vocab"].values()) == list(range(512))
    assert set(tiny_model.byte_alphabet().values()) <= model["vocab"].keys()
    assert len(set(tiny_model.byte_alphabet().values())) == 256
    for merge in model["merges"]:
        left, right = merge.split(" ")
        assert left + right in model["vocab"]


def test_written_once_repaired_when_damaged(tmp_path: Path) -> None:
    out = tmp_path / "models" / "tiny"
    command = [sys.executable, "-I", tiny_model.__file__, "--out", str(out)]
    subprocess.run(command, check=True, timeout=60)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    subprocess.run(command, check=True, timeout=60)
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    (out / "config.json").write_text("{}")
    (out / "stray").write_text("")
    subprocess.run(command, check=True, timeout=60)
    assert {path.name for path in out.iterdir()} == before.keys()
    assert json.loads((out / "config.json").read_text())["model_type"] == "qwen3"
    assert list(out.parent.iterdir()) == [out]


def test_the_step_that_makes_it() -> None:
    cache = PurePosixPath("/cache")
    step = built_in_step(cache, python="/v/bin/python")
    out = built_in_dir(cache)
    assert out.parent == cache / "models"
    assert out.name.startswith("tiny-random-")
    assert step.marker == out / "COMPLETE"
    (command,) = step.commands
    (file,) = step.files
    wanted = ("--out", str(out), "--size", "tiny")
    assert command.argv() == ["/v/bin/python", "-I", str(file.path), *wanted]
    assert file.content == Path(tiny_model.__file__).read_bytes()


def test_a_larger_one_to_measure_with() -> None:
    """74 M parameters (FACTS 6b), the same bytes everywhere, in a moment."""
    count = sum(math.prod(shape) for _, shape in tiny_model.shapes("small"))
    assert 73e6 < count < 76e6
    raw = tiny_model.weights("small")
    assert hashlib.sha256(raw).hexdigest() == SMALL
    config = tiny_model.config("small")
    assert (config["hidden_size"], config["num_hidden_layers"]) == (768, 12)
    tail = raw[-(2 * 768 + 2 * 128 * 768) : -2 * 768]  # the last projection, before the last norm
    wide = b"".join(b"\0\0" + tail[i : i + 2] for i in range(0, len(tail), 2))
    values = struct.unpack(f"<{len(wide) // 4}f", wide)
    mean = sum(values) / len(values)
    deviation = (sum(value * value for value in values) / len(values)) ** 0.5
    assert abs(mean) < 0.003
    assert abs(deviation - tiny_model.SPREAD) < 0.003


# --- the chat template ---------------------------------------------------------------------------

USER = {"role": "user", "content": "hi"}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def prompt(*messages: dict[str, Any], **more: Any) -> str:
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = json.dumps  # as transformers has it, without HTML escapes
    template = environment.from_string(tiny_model.CHAT_TEMPLATE)
    return template.render(messages=list(messages), add_generation_prompt=True, **more)


def test_plain_chat() -> None:
    assert prompt({"role": "system", "content": "S"}, USER) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_are_listed_and_calls_written_as_hermes_reads_them() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    text = prompt(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "content": "42"},
        tools=TOOLS,
    )
    assert f"<tools>\n{json.dumps(TOOLS[0])}\n</tools><|im_end|>\n<|im_start|>user\nhi" in text
    assert text.endswith(
        "<|im_start|>assistant\n"
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n42\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_earlier_reasoning_is_stripped_unless_asked_for() -> None:
    answer = {"role": "assistant", "content": "<think>\nx\n</think>\n\nyes"}
    assert "assistant\nyes<|im_end|>" in prompt(USER, answer, USER)
    assert "<think>\nx" in prompt(USER, answer, USER, preserve_thinking=True)
    apart = {"role": "assistant", "content": "yes", "reasoning": "x"}
    assert "assistant\nyes<|im_end|>" in prompt(USER, apart, USER)
    assert "<think>\nx\n</think>\n\nyes" in prompt(USER, apart, USER, preserve_thinking=True)


def test_thinking_can_be_turned_off() -> None:
    assert prompt(USER, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert prompt(USER, enable_thinking=True).endswith("assistant\n")


def test_content_in_parts() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}]
    assert "user\nab<|im_end|>" in prompt({"role": "user", "content": parts})
