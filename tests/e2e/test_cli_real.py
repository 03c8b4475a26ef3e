"""What a person does, with the real command and real engines: up, verify, status, up, down."""

import itertools
import json
import os
import shlex
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from pdctl.targets.local import INHERITED, INHERITED_PREFIXES
from tests.e2e.harness import Pairs, Setup, configuration, random_ids

PDCTL = Path(sys.executable).with_name("pdctl")
UP_LIMIT_S = 900  # an engine may have to be installed first


class Person:
    """Types pdctl commands in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "pd.yaml"
        self.env = {**os.environ, "PDCTL_STATE_DIR": str(folder / "s"), "NO_COLOR": "1"}

    def types(self, *args: str, expect: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(PDCTL), *args],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=UP_LIMIT_S,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == expect, done.stdout + done.stderr
        return done

    def asks(self, *args: str) -> Any:
        return json.loads(self.types(*args, "--json").stdout)


@pytest.fixture
def person(pairs: Pairs, tmp_path: Path) -> Any:
    """On a machine that runs no other pair; what they start is ended, whatever happens."""
    pairs.stop()
    someone = Person(tmp_path)
    someone.file.write_text(yaml.safe_dump(configuration("person", Setup())))
    try:
        yield someone
    finally:
        someone.types("down", "--yes")
        left = [each for each in psutil.process_iter() if str(tmp_path) in _line(each)]
        assert left == []


def runs(pid: int) -> bool:
    """True unless it has ended, whether or not its parent has taken notice."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _proc(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().rstrip("\0").split("\0")


def _unchosen(text: str, process: dict[str, Any], ports: dict[str, str]) -> str:
    """The text with what `up` chooses put back to what `render` shows."""
    if process["engine_id"]:
        text = text.replace(process["engine_id"], "<new at every start>")
    for port, shown in ports.items():
        text = text.replace(port, shown)
    return text


@pytest.mark.timeout(UP_LIMIT_S)
def test_from_one_file_to_a_proven_pair_and_back(person: Person) -> None:
    up = person.asks("up", "--yes")
    assert up["changed"]
    assert up["verify"]["ok"]
    assert up["verify"]["output_equal"] is True
    assert up["verify"]["turns"][1]["reused_tokens"] > 0
    assert up["verify"]["bytes_pulled"] > 0

    again = person.types("up", "--yes")
    assert "nothing to do, because" in again.stderr
    curl = next(line for line in again.stdout.splitlines() if line.strip().startswith("curl"))
    answer = subprocess.run(
        shlex.split(curl.strip().replace("curl", "curl -sf", 1)), capture_output=True, timeout=60
    )
    assert json.loads(answer.stdout)["choices"][0]["message"]["role"] == "assistant"

    status = person.asks("status")
    roles = {f"{each['role']}-{each['index']}": each for each in status["roles"]}
    assert set(roles) == {"prefill-0", "decode-0", "router-0"}
    assert all(each["healthy"] for each in roles.values())
    assert status["kv"]["decoder_ttl"] == 480
    assert status["kv"]["router_ttl"] < 480 - 5

    assert person.asks("verify")["ok"]
    all_green(person)
    what_runs_is_what_render_shows(person, up)
    the_ttl_is_lowered_and_raised_under_load(person, up)
    the_bench_sees_what_reuse_brings(person)
    all_is_accepted(person)

    down = person.types("down", "--yes")
    assert "nothing is left" in down.stderr + down.stdout
    for each in up["processes"]:
        assert not runs(each["pid"])
    again = person.types("down", "--yes")
    assert "nothing" in again.stderr + again.stdout


def all_is_accepted(person: Person) -> None:
    """Short: the bench ran already, and it has restarted prefill."""
    skip = ("--skip", "bench", "--skip", "restart.prefill", "--skip", "restart.decode")
    told = person.asks("accept", "--yes", "--minutes", "10", "--out", "b.tar.gz", *skip)
    found = {each["id"]: each for each in told["results"]}
    passed = {"doctor", "pair.prefill-0.decode-0", "exact"}
    assert {id_ for id_, each in found.items() if each["status"] == "pass"} == passed
    assert all(each["outcome"] == "HIT" for each in found["exact"]["data"]["compared"])
    assert found["exact"]["data"]["exact"] is True
    cells = {cell["column"]: cell for cell in told["cells"]}
    assert set(cells) == {"remote_cached_tokens", "nixl.UCX"}
    assert all(cell["agrees"] and cell["device"] == "cpu" for cell in cells.values())
    assert tarfile.is_tarfile(person.folder / "b.tar.gz")


class Talker(threading.Thread):
    """Conversations through the router, each turn compared with what decode says cold.

    Attributes:
        turns: what the router said of each.
        wrong: what was not as it should be.
    """

    def __init__(self, router: str, decode: str, model: str) -> None:
        super().__init__(daemon=True)
        self._router, self._decode, self._model = router, decode, model
        self._over = threading.Event()
        self.turns: list[dict[str, Any]] = []
        self.wrong: list[str] = []

    def run(self) -> None:
        for number in itertools.count():
            prompt = random_ids(9000 + number, 300)
            for _ in range(3):
                if self._over.is_set():
                    return
                answer = self._turn(prompt)
                prompt = [*prompt, *answer, *random_ids(number, 20)]

    def end(self) -> None:
        self._over.set()
        self.join(60)

    def _turn(self, prompt: list[int]) -> list[int]:
        try:
            said, told = self._ask(self._router, prompt)
            cold, _ = self._ask(self._decode, prompt, cache_salt=uuid.uuid4().hex)
        except OSError as error:
            self.wrong.append(str(error))
            return []
        self.turns.append(told)
        if said != cold:
            self.wrong.append(f"{said} is not {cold}")
        return said

    def _ask(self, url: str, prompt: list[int], **more: Any) -> tuple[list[int], dict[str, Any]]:
        body = {"model": self._model, "prompt": prompt, "max_tokens": 16, "temperature": 0}
        body |= {"ignore_eos": True, "return_token_ids": True, **more}
        request = urllib.request.Request(
            f"{url}/v1/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "x-pdctl-explain": "1"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            told = json.loads(answer.headers.get("x-pdctl-turn", "{}"))
            return json.load(answer)["choices"][0]["token_ids"], told


def the_ttl_is_lowered_and_raised_under_load(person: Person, up: dict[str, Any]) -> None:
    """No request notices; what is in force is what decode's next handle says."""
    urls = {each["name"]: f"http://127.0.0.1:{each['port']}" for each in up["processes"]}
    with urllib.request.urlopen(f"{urls['decode-0']}/v1/models", timeout=10) as models:
        model = json.load(models)["data"][0]["id"]
    talkers = [Talker(urls["router-0"], urls["decode-0"], model) for _ in range(2)]
    for talker in talkers:
        talker.start()
    try:
        for seconds in (30, 900, 20, 600):
            before = person.asks("status")["kv"]
            said = person.asks("set-ttl", str(seconds), "--yes")
            assert said["changed"]
            assert said["decoder_ttl"] == {"before": before["decoder_ttl"], "after": seconds}
            least, most = said["decode"][0]["kept_for"]
            assert least - 0.5 <= seconds <= most + 0.5
            assert said["routers"][0]["ttl"] == seconds - 8
            kv = person.asks("status")["kv"]
            assert (kv["decoder_ttl"], kv["router_ttl"]) == (seconds, seconds - 8)
            assert kv["configured"] == {"decoder_ttl": 480, "router_ttl": 472}
            time.sleep(2)
    finally:
        for talker in talkers:
            talker.end()
    turns = [turn for talker in talkers for turn in talker.turns]
    assert [wrong for talker in talkers for wrong in talker.wrong] == []
    assert sum(turn["outcome"] == "HIT" for turn in turns) >= 4
    # A retry that hides a failure counts as one.
    assert [turn for turn in turns if turn["retries"]] == []
    for each in up["processes"]:
        assert "Declining expired remote read" not in Path(each["log"]).read_text()

    shown = person.asks("plan")
    assert [step["id"] for step in shown["steps"] if step["changes"]] == ["ttl"]
    person.types("up", "--yes", "--no-verify")
    kv = person.asks("status")["kv"]
    assert kv == {"decoder_ttl": 480, "router_ttl": 472}
    state = json.loads(urllib.request.urlopen(f"{urls['router-0']}/ready", timeout=10).read())
    assert state["ttl"] == 472

    for seconds in (700, 480):
        person.asks("set-ttl", str(seconds), "--write", "--yes")
        kv = person.asks("status")["kv"]
        assert kv == {"decoder_ttl": seconds, "router_ttl": seconds - 8}
        shown = person.asks("plan")
        assert [step["id"] for step in shown["steps"] if step["changes"]] == []


def the_bench_sees_what_reuse_brings(person: Person) -> None:
    """The short twin of the bench in the README: prefill restarted without its prefix cache."""
    size = ("--conversations", "2", "--turns", "3", "--question", "32", "--answer", "24")
    told = person.asks("bench", "--yes", "--prefix-caching", "off", "--lengths", "300,3000", *size)
    legs = {(line["length"], line["leg"]): line for line in told["lines"]}
    assert set(legs) == {(n, f"{leg}-cache") for n in (300, 3000) for leg in ("off", "on")}
    for (length, leg), line in legs.items():
        assert (line["turns"], line["errors"]) == (4, 0)
        if leg == "off-cache":
            assert (line["outcomes"], line["pulled_bytes"]) == ({"OFF": 4}, 0)
            continue
        assert line["outcomes"] == {"HIT": 4}
        assert line["transfer_ms"] > 0
        assert line["compute_ms"] < legs[length, "off-cache"]["compute_ms"]
        # Nothing is in prefill's cache, so what was reused is what was pulled.
        assert length < line["pulled_tokens"] < line["prompt"] + 60
        assert line["pinned_tokens"] > length
    assert told["ratios"][1]["times"]["value"] > 1.2
    page = person.types("report", told["folder"], "--no-pictures").stdout.strip()
    assert "Prefill&#39;s own prefix cache was off" in (person.folder / page).read_text()
    # Reuse and prefill are as they were.
    assert person.asks("reuse")["routers"][0]["share"] == 1
    assert [step["id"] for step in person.asks("plan")["steps"] if step["changes"]] == []


def all_green(person: Person) -> None:
    """What `doctor` says of a healthy pair on a first run with few turns."""
    doctor = person.asks("doctor", "--strict")
    bad = [each for each in doctor["checks"] if each["status"] in ("fail", "warn")]
    assert bad == []
    passed = {each["id"] for each in doctor["checks"] if each["status"] == "pass"}
    assert {"runtime.two_turn", "runtime.misses", "router.reuse", "logs.read"} <= passed
    bundle = person.folder / "bundle"
    saved = json.loads(person.types("doctor", "--json", "--save", str(bundle)).stdout)
    assert person.asks("doctor", "--from", str(bundle)) == saved
    assert {each.name for each in (bundle / "logs").iterdir()} == {
        *("prefill-0.log", "decode-0.log", "router-0.log")
    }


def what_runs_is_what_render_shows(person: Person, up: dict[str, Any]) -> None:
    shown = {each["name"]: each for each in person.asks("render")["processes"]}
    running = {each["name"]: each for each in up["processes"]}
    assert set(shown) == set(running)
    chosen = _chosen_ports(running, shown)
    for name, process in running.items():
        argv = [_unchosen(word, process, chosen) for word in _proc(process["pid"], "cmdline")]
        # The engines rename themselves; argv is what the kernel was given all the same.
        assert argv == [_unchosen(word, process, chosen) for word in shown[name]["argv"]]
        environ = dict(
            item.partition("=")[::2] for item in _proc(process["pid"], "environ") if item
        )
        for key, value in shown[name]["env"].items():
            assert _unchosen(environ.pop(key), process, chosen) == value, key
        inherited = {key for key in environ if not key.startswith(INHERITED_PREFIXES)}
        assert inherited <= INHERITED


def _chosen_ports(
    running: dict[str, dict[str, Any]], shown: dict[str, dict[str, Any]]
) -> dict[str, str]:
    """Ports that `up` chose for port 0, as text, with what `render` has in their place."""
    chosen = {str(each["port"]): str(shown[name]["port"]) for name, each in running.items()}
    for name, each in running.items():
        environ = _proc(each["pid"], "environ")
        for item in environ:
            key, _, value = item.partition("=")
            if key == "VLLM_NIXL_SIDE_CHANNEL_PORT":
                chosen[value] = str(shown[name]["side_channel_port"])
    return chosen
