"""Logs of LiteLLM and vLLM, as these write them."""

import json

import pytest

from pdctl.analyze.importers import LiteLlmReader, VllmReader, kind_of
from pdctl.analyze.lines import open_log
from pdctl.analyze.pinned import gaps_of, steps_of
from pdctl.analyze.scan import Wanted, scan
from pdctl.analyze.turns import Tally
from tests.cli.helpers import run_cli


def scanned(tmp_path, text: str, **more: object) -> Tally:
    (tmp_path / "log").write_text(text)
    return scan([open_log(str(tmp_path / "log"))], Wanted(480, cores=1, **more)).tally  # type: ignore[arg-type]


def payload(start: float, prompt: int, **more: object) -> dict[str, object]:
    """As https://docs.litellm.ai/docs/proxy/logging_spec has it, shortened."""
    return {
        "id": "chatcmpl-1",
        "trace_id": "t1",
        "call_type": "acompletion",
        "status": "success",
        "prompt_tokens": prompt,
        "completion_tokens": 20,
        "startTime": start,
        "endTime": start + 4,
        "completionStartTime": start + 0.5,
        "model": "qwen",
        "metadata": {"user_api_key_hash": "x"},
    } | more


def test_litellm(tmp_path) -> None:
    rows = [
        payload(0, 100),
        {"standard_logging_object": payload(10, 150)},
        payload(20, 500, metadata={"requester_metadata": {"session_id": "other"}}),
        payload(30, 900, status="failure"),
        payload(40, 200, startTime="1970-01-01T00:00:40Z", endTime="1970-01-01 00:00:41"),
    ]
    tally = scanned(tmp_path, "".join(json.dumps(row) + "\n" for row in rows))
    sums = tally.sums
    assert (sums.follow_ups, sums.prompt, sums.repeated) == (2, 350, 250)
    assert (sums.answered, sums.answered_repeated) == (2, 120 + 170)
    assert gaps_of(steps_of(tally.sample.kept)) == {6: 1, 26: 1}


def test_litellm_without_a_conversation_or_a_count() -> None:
    reader = LiteLlmReader()
    lines = [payload(0, 10, trace_id=None), payload(0, 0), {"a": 1}]
    assert not reader.rows("".join(json.dumps(row) + "\n" for row in lines).encode())
    assert sum(reader.reading.left_out.values()) == 2
    assert reader.reading.bad == 1


def details(second: int, ids: list[int], prompt: str = "hi") -> str:
    """vLLM 0.32, `RequestLogger.log_inputs` at DEBUG."""
    return (
        f"(APIServer pid=1) DEBUG 11-29 15:28:{second:02} [request_logger.py:58] Request "
        f"chatcmpl-{second} details: prompt: {prompt!r}, prompt_token_ids: {ids}, "
        "prompt_embeds shape: None.\n"
        f"(APIServer pid=1) INFO 11-29 15:28:{second:02} [request_logger.py:66] Received request "
        f"chatcmpl-{second}: params: SamplingParams(n=1), lora_request: None.\n"
    )


def test_vllm_conversations_are_those_that_go_on(tmp_path) -> None:
    one, two = list(range(50)), list(range(30)) + [7] * 40
    text = details(1, one, "it's prompt_token_ids: [9]") + details(2, two)
    text += "(EngineCore pid=2) INFO 11-29 15:28:03 [core.py:1] something else\n"
    text += details(5, [*one, 1, 2, 3]) + details(9, [*one, 1, 2, 3, 4]) + details(11, [*two, 5])
    tally = scanned(tmp_path, text, part=100)
    sums = tally.sums
    assert (sums.follow_ups, sums.prompt, sums.repeated) == (3, 53 + 54 + 71, 50 + 53 + 70)
    assert gaps_of(steps_of(tally.sample.kept)) == {4: 2, 9: 1}


def test_vllm_before_it_split_the_line() -> None:
    line = (
        b"INFO 12-31 23:59:59 [logger.py:41] Received request cmpl-1: prompt: 'a', params: "
        b"SamplingParams(n=1), prompt_token_ids: [1, 2], prompt_embeds shape: None, lora_request: "
        b"None.\n"
    )
    reader = VllmReader(2026)
    rows = reader.rows(line + line.replace(b"12-31 23:59:59", b"01-01 00:00:04"))
    assert [row.prompt_tokens for row in rows] == [2, 2]
    assert rows[1].ts - rows[0].ts == 5  # type: ignore[operator]


def test_vllm_that_does_not_say_is_told_so(tmp_path) -> None:
    line = "INFO 11-29 15:28:01 [logger.py:1] Received request x: params: SamplingParams(n=1)\n"
    (tmp_path / "log").write_text(line * 3)
    told = run_cli("analyze", str(tmp_path / "log"), "--json").json
    assert told["requests"] == 0
    assert told["lines"]["left_out"] == {
        "the engine's log has no `prompt_token_ids` (needs DEBUG)": 3
    }


@pytest.mark.parametrize(
    ("block", "kind"),
    [
        (b"", "requests"),
        (b"junk\n{\n", "requests"),
        (b'{"conversation_id": 1, "startTime": 2, "prompt_tokens": 3}\n', "requests"),
        (b'x\n{"startTime": 2, "prompt_tokens": 3}\n', "litellm"),
        (details(1, [1]).encode(), "vllm"),
    ],
)
def test_kinds_are_known_by_their_lines(block: bytes, kind: str) -> None:
    assert kind_of(block) == kind
