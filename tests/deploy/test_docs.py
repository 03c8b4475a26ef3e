"""docs/deploy.md against what the code says."""

import re
from dataclasses import replace
from pathlib import Path

from pdctl.base.process import ProcessRef, RunningProcess
from pdctl.plan.build import build
from pdctl.plan.chosen import kept
from tests.cli.helpers import run_cli
from tests.plan.fleet import running
from tests.plan.samples import FRESH, config, deployment, state

TEXT = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text()


def test_every_step_is_in_the_table() -> None:
    saved = state()
    stray = RunningProcess(ProcessRef(9, 1, "boot", "/st/demo/x"), ())
    drifted = deployment(kept(deployment().processes, saved), changed=("--more",))
    alive = frozenset({"decode-0", "router-0"})
    facts = replace(FRESH, leftovers=(stray,), alive=alive)
    ids = {step.id for step in build(config(), drifted, facts, saved).steps}
    fleet = running()
    fleet.revision = "r2"
    ids |= {step.id for step in fleet.plan().steps}
    assert {"part-prefill-0+decode-0", "one-kind"} <= ids
    rows = re.findall(r"^\| (`.+?) \|", TEXT, re.MULTILINE)
    documented = {word for row in rows for word in re.findall(r"`([^`]+)`", row)}
    families = {each.rstrip("…") for each in documented if each.endswith("…")}
    unknown = [
        each for each in ids if each not in documented and not each.startswith(tuple(families))
    ]
    assert unknown == []


def test_every_option_it_names_exists() -> None:
    helps = "".join(run_cli(command, "--help").stdout for command in ("up", "down", "plan"))
    assert set(re.findall(r"`[^`\n]*?(--[a-z][a-z-]+)", TEXT)) - {"--max-num-seqs"} <= set(
        re.findall(r"--[a-z-]+", helps)
    )
