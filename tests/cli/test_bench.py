"""`pdctl bench` against a fake pair: what is measured, what is refused, what is left behind."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.exits import ExitCode
from pdctl.bench import files, run
from tests.cli.conftest import Serve
from tests.cli.helpers import CliResult, run_cli
from tests.observe.fakes import FakeEngine

SMALL = ("--conversations", "2", "--turns", "3", "--question", "10", "--answer", "8")


def bench(file: Path, out: Path, *more: str) -> CliResult:
    return run_cli("bench", "-f", str(file), "--out", str(out), *SMALL, *more)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_legs_are_measured_beside_each_other(serve: Serve, tmp_path: Path) -> None:
    pair, file = serve()
    pair.router.share, pair.router.tenants = 0.25, {"acme": 0.5}
    out = tmp_path / "r"
    result = bench(file, out, "--lengths", "100,200", "--repeats", "2", "--json")
    assert result.exit_code == 0, result.stderr
    cells = lines(out / files.CELLS)
    assert [cell["key"] for cell in cells] == [
        *("off+cache/100/1", "on+cache/100/1", "off+cache/200/1", "on+cache/200/1"),
        *("on+cache/100/2", "off+cache/100/2", "on+cache/200/2", "off+cache/200/2"),
    ]
    assert all(cell["complete"] and cell["turns"]["all"] == 6 for cell in cells)
    turns = lines(out / files.TURNS)
    assert len(turns) == 8 * 6
    later = [t for t in turns if t["turn"] > 1]
    assert {t["outcome"] for t in later if t["cell"].startswith("off")} == {"OFF"}
    assert {t["outcome"] for t in later if t["cell"].startswith("on")} == {"HIT"}
    # Each turn's prompt has its exact length: the start, a question each, the answers between.
    assert {(t["cell"].split("/")[1], t["turn"]): t["prompt_tokens"] for t in turns} == {
        (str(length), turn): length + 10 * turn + 8 * (turn - 1)
        for length in (100, 200)
        for turn in (1, 2, 3)
    }
    assert all(t["ttft_ms"] <= t["total_ms"] and not t["error"] for t in turns)
    told = result.json
    assert told == json.loads((out / files.SUMMARY).read_text()) | {"folder": str(out)}
    assert [line["hit_share"] for line in told["lines"]] == [0, 1, 0, 1]
    on = told["lines"][1]
    assert on["pulled_bytes"] == on["pulled_tokens"] * 1000
    assert on["transfer_ms"] == pytest.approx(on["pulled_bytes"] / 1000)
    assert on["pinned_tokens"] > 0
    assert told["lines"][0]["pinned_tokens"] == 0
    # The router is set back, and nothing is left there.
    assert (pair.router.share, pair.router.tenants) == (0.25, {"acme": 0.5})
    assert pair.decode.usage == 0


def test_prompts_of_different_cells_share_no_cache(serve: Serve, tmp_path: Path) -> None:
    pair, file = serve()
    done = bench(file, tmp_path / "r", "--lengths", "100", "--seed", "x", "--repeats", "1")
    assert done.exit_code == 0
    begun = [turn for turn in pair.router.turns if len(turn["prompt"]) == 110]
    assert len({tuple(turn["prompt"]) for turn in begun}) == len(begun)
    assert len({turn["cache_salt"] for turn in begun}) == 4  # two legs, and the warm-up of each


def test_the_tables_in_words(serve: Serve, tmp_path: Path) -> None:
    _, file = serve()
    result = bench(file, tmp_path / "r", "--lengths", "100,9000", "--repeats", "1")
    assert result.exit_code == 0, result.stderr
    assert "lengths above 4,026 become 4,026" in result.stderr
    assert "4,026, prefill's prefix cache on: the first token comes" in result.stdout
    assert result.stdout.splitlines()[0].split()[:3] == ["length", "leg", "turns"]
    assert f"pdctl report {tmp_path / 'r'}" in result.stderr


def test_nothing_is_measured_when_reuse_is_not_proven(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_READY_S", 0.0)
    decode = FakeEngine("decode", bidirectional=False)
    pair, file = serve(decode=decode, canary="decode returned no handle")
    result = bench(file, tmp_path / "r", "--lengths", "100", "--json")
    assert result.exit_code == 1
    assert "nothing is measured, because reuse is not proven" in result.stderr
    assert not (tmp_path / "r" / files.TURNS).exists()
    assert pair.router.share == 1.0


def test_a_leg_that_is_silently_off_is_no_leg(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair, file = serve()
    turned = type(pair.router)._pull

    def forgets(router: Any, body: dict[str, Any], prompt: list[int]) -> int:
        """Reuses for the proof, whose conversations it knows by name, and for nobody else."""
        if "pdctl-verify" in body.get("conversation_id", ""):
            return turned(router, body, prompt)
        return 0

    monkeypatch.setattr(type(pair.router), "_pull", forgets)
    result = bench(file, tmp_path / "r", "--lengths", "100", "--legs", "on")
    assert result.exit_code == 1
    assert "the leg with reuse has reused nothing" in result.stderr


def test_a_leg_that_is_silently_on_is_no_leg(serve: Serve, tmp_path: Path) -> None:
    _, file = serve(switch_sticks=True)
    result = bench(file, tmp_path / "r", "--lengths", "100", "--legs", "off")
    assert result.exit_code == 1
    assert "the leg without reuse has reused" in result.stderr


def test_engines_that_serve_others_are_told(serve: Serve, tmp_path: Path) -> None:
    _, file = serve(keeps=True)
    result = bench(file, tmp_path / "r", "--lengths", "100", "--settle", "0")
    assert result.exit_code == 75
    assert "decode still holds blocks 0 s after the last turn: 50.0%" in result.stderr


def test_what_was_cut_short_is_kept_and_can_go_on(serve: Serve, tmp_path: Path) -> None:
    pair, file = serve()
    out = tmp_path / "r"
    pair.router.fail, pair.router.fail_from = (500, "boom"), 10**9
    result = bench(file, out, "--lengths", "100,200", "--repeats", "1", "--max-time", "0s")
    assert result.exit_code == 0
    assert "4 of 4 cells were left out: `--max-time` is over" in result.stderr
    assert "nothing was measured" in result.stderr
    result = run_cli("bench", "-f", str(file), "--resume", str(out))
    assert result.exit_code == 0, result.stderr
    cells = lines(out / files.CELLS)
    assert len(cells) == 4
    assert {cell["length"] for cell in cells} == {100, 200}
    again = run_cli("bench", "-f", str(file), "--resume", str(out))
    assert again.exit_code == 0
    assert len(lines(out / files.CELLS)) == 4
    refused = bench(file, out)
    assert refused.exit_code == 2
    assert f"pdctl bench --resume {out}" in refused.stderr


def test_no_cell_begins_that_would_end_too_late(serve: Serve, tmp_path: Path) -> None:
    """Judged by what took longest for its length so far."""
    pair, file = serve()
    lengths = ("--lengths", "10,20,4000", "--repeats", "1", "--max-time", "60s", "--warmup", "0")
    pair.router.pause = 0.05
    result = bench(file, tmp_path / "r", *lengths, "--clients", "1")
    assert result.exit_code == 0, result.stderr
    assert {cell["length"] for cell in lines(tmp_path / "r" / files.CELLS)} == {10, 20}
    assert "2 of 6 cells were left out" in result.stderr


@pytest.fixture
def ctrl_c(request: pytest.FixtureRequest) -> Iterator[None]:
    """Ctrl-C as it is, or ignored as in what a script has put into the background."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("ctrl_c", "ended_by"),
    [
        (signal.default_int_handler, signal.SIGINT),
        (signal.default_int_handler, signal.SIGTERM),
        (signal.SIG_IGN, signal.SIGTERM),
    ],
    indirect=["ctrl_c"],
    ids=["ctrl-c", "sigterm", "sigterm-in-the-background"],
)
def test_what_ends_it_early_keeps_the_turns_of_the_cell_that_ran(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_by: signal.Signals
) -> None:
    pair, file = serve()
    out = tmp_path / "r"
    noted = files.Folder.add_turn

    def until_the_fifth(folder: files.Folder, row: Any) -> None:
        noted(folder, row)
        if len(lines(out / files.TURNS)) == 5:
            signal.raise_signal(ended_by)

    monkeypatch.setattr(files.Folder, "add_turn", until_the_fifth)
    result = bench(file, out, "--lengths", "100", "--repeats", "1", "--clients", "1")
    assert result.exit_code == 130
    assert f"`pdctl bench --resume {out}` measures the rest" in result.stderr
    (cell,) = lines(out / files.CELLS)
    assert not cell["complete"]
    assert json.loads((out / files.SUMMARY).read_text())["lines"][0]["incomplete"] == 1
    assert pair.router.share == 1.0
    monkeypatch.undo()
    monkeypatch.setenv("PDCTL_STATE_DIR", str(tmp_path / "state"))
    assert run_cli("bench", "-f", str(file), "--resume", str(out)).exit_code == 0
    assert [line["turns"] for line in json.loads((out / files.SUMMARY).read_text())["lines"]] == [
        4,
        4,
    ]


def test_a_failing_turn_is_counted_and_said(serve: Serve, tmp_path: Path) -> None:
    pair, file = serve()
    pair.router.fail, pair.router.fail_from = (500, "boom"), 10
    result = bench(file, tmp_path / "r", "--lengths", "100", "--repeats", "1", "--legs", "off")
    assert "turns failed in off+cache/100/1: boom" in result.stderr
    assert "!" in result.stdout


def test_a_trace_is_replayed(serve: Serve, tmp_path: Path) -> None:
    _, file = serve()
    trace = tmp_path / "log.jsonl"
    rows = [
        {"conversation_id": "a", "ts": 5.0, "prompt_tokens": 100, "output_tokens": 4},
        {"conversation_id": "b", "ts": 5.1, "prompt_tokens": 90, "output_tokens": 4},
        {"conversation_id": "a", "ts": 5.4, "prompt_tokens": 150, "output_tokens": 4},
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "r"
    result = bench(file, out, "--trace", str(trace), "--repeats", "1", "--speed", "2")
    assert result.exit_code == 0, result.stderr
    turns = [t for t in lines(out / files.TURNS) if t["cell"].startswith("on")]
    at = {t["prompt_tokens"]: t["sent_at"] for t in turns}
    assert set(at) == {100, 90, 150}
    assert at[150] - at[100] > 0.1  # 0.2 as due, less what the first was late
    assert {t["outcome"] for t in turns if t["prompt_tokens"] == 150} == {"HIT"}
    assert json.loads((out / files.SUMMARY).read_text())["lines"][0]["length"] is None


def test_open_arrivals_do_not_wait_for_a_client(serve: Serve, tmp_path: Path) -> None:
    _, file = serve()
    out = tmp_path / "r"
    result = bench(
        file, out, "--lengths", "50", "--rate", "200", "--repeats", "1", "--clients", "1"
    )
    assert result.exit_code == 0, result.stderr
    assert "later" not in lines(out / files.CELLS)[0]["counted"]


def test_chats_send_messages(serve: Serve, tmp_path: Path) -> None:
    pair, file = serve()
    result = bench(
        file, tmp_path / "r", "--lengths", "50", "--legs", "off", "--repeats", "1", "--chat"
    )
    assert result.exit_code == 0, result.stderr
    last = pair.router.turns[-1]
    assert [each["role"] for each in last["messages"]] == ["user", "assistant"] * 2 + ["user"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--legs", "on,maybe"), "are no legs"),
        (("--lengths", "2k,x"), "are no lengths"),
        (("--prefix-caching", "off"), "pdctl does not run these engines"),
        (("--trace", "x", "--chat"), "goes with neither"),
        (("--max-time", "1:30"), "not a duration"),
    ],
)
def test_what_makes_no_sense_is_refused(
    serve: Serve, tmp_path: Path, args: tuple[str, ...], said: str
) -> None:
    _, file = serve()
    result = bench(file, tmp_path / "r", *args)
    assert result.exit_code == 2
    assert said in result.stderr
    assert not (tmp_path / "r").exists()


def test_a_deployment_that_is_not_up_is_told_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    file.write_text(
        "name: x\nmodel: {id: a/b}\nrouter: {port: 7}\n"
        "target: {kind: external, prefill: ['http://127.0.0.1:9'], decode: ['http://127.0.0.1:8']}\n"
    )
    for command in ("bench", "accept"):
        result = run_cli(command, "-f", str(file), "--out", str(tmp_path / "out"))
        assert result.exit_code == ExitCode.UNREACHABLE
        assert "the router of `x` does not answer" in result.stderr
        assert "connection refused" in result.stderr
        assert "ssl:default" not in result.stderr
        assert "hint: pdctl up" in result.stderr
        assert not (tmp_path / "out").exists()


def test_prefill_is_not_restarted_without_consent(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    assert run_cli("init", "--file", str(file)).exit_code == 0
    out = tmp_path / "out"
    result = run_cli("bench", "-f", str(file), "--out", str(out), "--prefix-caching", "off")
    assert result.exit_code == ExitCode.USAGE
    assert "prefill is restarted" in result.stderr
    assert "add `--yes`" in result.stderr
    assert not out.exists()


def test_the_example_proxy_has_no_switch(tmp_path: Path) -> None:
    file = tmp_path / "pd.yaml"
    file.write_text(
        "name: x\nmodel: {id: a/b}\nrouter: {kind: vllm-example, source: proxy.py}\n"
        "target: {kind: external, prefill: ['http://127.0.0.1:9'], decode: ['http://127.0.0.1:8']}\n"
    )
    result = run_cli("bench", "-f", str(file))
    assert result.exit_code == 2
    assert "the example proxy cannot switch reuse" in result.stderr
