import json
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.base.exits import ExitCode
from pdctl.state.store import StateStore
from tests.cli.deployed import NAME, Deployed
from tests.cli.helpers import CliResult, run_cli
from tests.observe.logs.lines import EXAMPLE, POSITIVE

SAMPLE = Path(__file__).parents[1] / "data" / "logs"
FILES = [str(SAMPLE / name) for name in ("prefill.log", "decode.log", "proxy.log")]
DECLINED = POSITIVE["kv.read.declined"][0]


def lines(result: CliResult) -> list[dict[str, object]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_json_has_the_shape_of_the_contract() -> None:
    result = run_cli("logs", "--json", *FILES)
    assert result.exit_code == ExitCode.BAD_ANSWER
    *events, last = lines(result)
    keys = {"ts", "role", "source", "line", "signature", "severity", "fields"}
    assert all(set(event) == keys for event in events)
    assert {event["role"] for event in events} == {"prefill", "decode", "router"}
    summary = last["summary"]
    assert isinstance(summary, dict)
    assert (summary["hit"], summary["miss"], summary["miss_rate"]) == (24, 8, 0.25)
    assert summary["signatures"]["kv.read.declined"] == 3
    declined = next(event for event in events if event["signature"] == "kv.read.declined")
    assert declined["source"] == "prefill.log"
    assert str(declined["ts"]).startswith("2026-11-29T15:29:23")
    assert declined["fields"] == {
        "request": "chatcmpl-13fb95f2-6abb-410a-b64e-6c2eab801502-8187488a",
        "engine": "decode-15484",
    }


def test_people_get_what_is_bad_a_summary_and_the_next_step() -> None:
    result = run_cli("logs", *FILES)
    assert result.exit_code == ExitCode.BAD_ANSWER
    assert "15:29:23 prefill  ! kv.read.declined Declining expired remote read for" in result.stdout
    assert "cache HIT" not in result.stdout
    report = result.stdout.partition("\n\n")[2]
    assert report.startswith("turns: 24 HIT, 8 MISS (25%): 3 first turns, 2 without a conversation")
    assert "! 3 × kv.read.declined (degrade): prefill declined to read blocks" in report
    assert "! 3 × router.cache.lost (degrade): a MISS that should have been a HIT, follows from " \
        "`kv.read.declined`" in report  # fmt: skip
    assert report.rstrip().endswith("next: `pdctl explain kv.read.declined`")
    assert "\x1b" not in result.stdout


def test_a_good_log_is_a_good_answer(tmp_path: Path) -> None:
    log = tmp_path / "router.log"
    log.write_text(f"{EXAMPLE}[r] conv=a: cache MISS\n{EXAMPLE}conv=a: cache HIT (age=0.1s)\n")
    result = run_cli("logs", str(log))
    assert result.exit_code == 0
    assert "turns: 1 HIT, 1 MISS (50%): 1 first turns" in result.stdout
    assert "nothing bad was found" in result.stdout
    log.write_text("hello\n")
    assert "nothing that pdctl knows stands in router.log" in run_cli("logs", str(log)).stdout


def test_many_lines_of_one_kind_are_not_all_shown(tmp_path: Path) -> None:
    log = tmp_path / "prefill.log"
    log.write_text(f"{DECLINED}\n" * 100)
    shown = run_cli("logs", str(log)).stdout
    assert shown.count("Declining expired") == 20
    assert "… further lines of `kv.read.declined` are counted; `--all` shows them" in shown
    assert "! 100 × kv.read.declined" in shown
    assert run_cli("logs", "--all", str(log)).stdout.count("Declining expired") == 100


def test_grep_role_and_since_choose_lines(tmp_path: Path) -> None:
    def ids(*args: str) -> list[object]:
        return [event["signature"] for event in lines(run_cli("logs", "--json", *args))[:-1]]

    assert set(ids("--role", "decode", *FILES)) >= {"kv.lease.expired"}
    assert "router.cache.hit" not in ids("--role", "decode", *FILES)
    assert ids("--grep", "df30e66b.*cache MISS", *FILES) == ["router.cache.miss"]
    assert ids("--grep", "Uvicorn running", *FILES) == [None]
    late = ids("--since", "2026-11-29T15:30:00", *FILES)
    assert late.count("kv.read.declined") == 1
    assert ids("--since", "1h", *FILES) == []
    # A conversation that began before is not new.
    router = lines(run_cli("logs", "--json", "--since", "2026-11-29T15:30:00", FILES[2]))
    kinds = [event["fields"].get("kind") for event in router[:-1]  # type: ignore[attr-defined]
             if event["signature"] == "router.cache.miss"]  # fmt: skip
    assert kinds == ["lost", "lost", "lost", "unnamed"]


@pytest.mark.parametrize(("args", "code", "said"), [
    (["--role", "proxy", "x.log"], ExitCode.USAGE, "`proxy` is not a role"),
    (["--since", "yesterday", FILES[0]], ExitCode.USAGE, "`yesterday` is no time"),
    (["--grep", "(", FILES[0]], ExitCode.USAGE, "`(` is no regular expression"),
    (["none.log"], ExitCode.NOT_FOUND, "cannot read the log: No such file or directory"),
])  # fmt: skip
def test_what_makes_no_sense_is_said(args: list[str], code: int, said: str) -> None:
    result = run_cli("logs", *args)
    assert result.exit_code == code
    assert said in result.stderr


def test_without_logs_and_configuration_the_way_on_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PDCTL_FILE", raising=False)
    result = run_cli("logs")
    assert result.exit_code == ExitCode.NOT_FOUND
    assert "hint: name the logs: `pdctl logs FILE…`, `-` for stdin" in result.stderr


def test_stdin_is_read_as_it_comes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pdctl", "logs", "--json", "-"],
        input=f"{DECLINED}\n", capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == ExitCode.BAD_ANSWER
    assert json.loads(done.stdout.splitlines()[0])["source"] == "stdin"


def test_a_reader_that_leaves_is_no_error() -> None:
    command = f"{sys.executable} -m pdctl logs --json --all {' '.join(FILES * 3)} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30)
    assert json.loads(done.stdout)
    assert done.stderr == ""


def test_the_deployments_own_logs_are_read_with_what_was_put_aside(deployed: Deployed) -> None:
    missing = run_cli("logs", "--name", NAME)
    assert missing.exit_code == ExitCode.NOT_FOUND
    assert "nothing of `demo` was started, so it has no logs" in missing.stderr
    run_cli(*deployed.args("up", "--no-verify"))
    state = StateStore(NAME).load()
    assert state is not None
    log = Path(state.processes["prefill-0"].log)
    log.with_name(f"{log.name}.1").write_text(f"{DECLINED}\n")
    with log.open("a") as file:
        file.write(f"{DECLINED}\n")
    for args in (["--name", NAME], ["--file", str(deployed.file)]):
        *events, last = lines(run_cli("logs", "--json", *args))
        assert last["summary"]["signatures"]["kv.read.declined"] == 2  # type: ignore[index]
        assert {event["source"] for event in events} == {"prefill-0"}
        assert {event["role"] for event in events} == {"prefill"}
    assert lines(run_cli("logs", "--json", "--name", NAME, "--role", "decode"))[:-1] == []
