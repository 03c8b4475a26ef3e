"""The table: each signature finds its lines and not those that are nearly so."""

import shlex
from fnmatch import fnmatch
from itertools import pairwise

import pytest

from pdctl.doctor.checks import CHECKS
from pdctl.observe.logs.scan import HOOKS
from pdctl.observe.signatures import BY_ID, SIGNATURES
from tests.observe.logs.helpers import ids
from tests.observe.logs.lines import NEAR, POSITIVE

SPOKEN = [signature for signature in SIGNATURES if not signature.derived]


def test_ids_are_unique_and_each_has_lines_of_both_kinds() -> None:
    assert len(BY_ID) == len(SIGNATURES)
    assert set(POSITIVE) == set(NEAR) == {signature.id for signature in SPOKEN}
    assert all(POSITIVE.values())
    assert all(NEAR.values())


@pytest.mark.parametrize("id", POSITIVE)
def test_its_lines_are_found(id: str) -> None:
    for line in POSITIVE[id]:
        assert ids(f"before\n{line}\nafter\n") == [id], line
        assert any(literal in line for literal in BY_ID[id].literals), line


@pytest.mark.parametrize("id", NEAR)
def test_what_is_nearly_it_is_not(id: str) -> None:
    for line in NEAR[id]:
        assert id not in ids(f"{line}\n"), line


def test_the_two_of_the_task_come_first_in_their_tables() -> None:
    assert SIGNATURES[0].id == "router.cache.miss"
    assert next(s.id for s in SIGNATURES if s.id.startswith("kv.")) == "kv.read.declined"


def test_literals_are_the_same_in_json_and_have_a_hook() -> None:
    for signature in SPOKEN:
        for literal in signature.literals:
            # Docker alone escapes `>`; that one is what an engine says that does not start.
            assert not set(literal) & set('"\\<>&\n') or literal == "NIXL >= ", literal
            assert literal.isascii(), literal
            assert any(hook in literal.encode() for hook in HOOKS), literal


def test_every_literal_stands_in_a_line_of_its_signature() -> None:
    for signature in SPOKEN:
        text = "\n".join(POSITIVE[signature.id])
        for literal in signature.literals:
            # The router's own name is one of the literals of lines that the example writes too.
            assert literal in text, (signature.id, literal)


def test_every_named_group_is_filled_by_some_line() -> None:
    for signature in SPOKEN:
        filled: set[str] = set()
        for line in POSITIVE[signature.id]:
            for part in line.split("\n"):
                found = signature.regex.search(part[part.find("] ") + 2 :]) or (
                    signature.regex.search(part)
                )
                filled |= {k for k, v in (found.groupdict() if found else {}).items() if v}
        if not signature.pattern.startswith("^"):
            assert set(signature.fields) <= filled, signature.id


def test_causes_exist_and_what_is_good_asks_for_nothing() -> None:
    for signature in SIGNATURES:
        assert set(signature.follows) <= set(BY_ID), signature.id
        assert signature.id not in signature.follows
        assert not signature.good or signature.severity == "note"
        assert signature.derived == (not signature.literals)


def test_texts_are_sentences() -> None:
    for signature in SIGNATURES:
        assert signature.meaning.endswith("."), signature.id
        assert not signature.title.endswith("."), signature.id
        assert signature.source, signature.id


def test_what_a_user_wrote_is_no_fault_of_the_engine() -> None:
    for signature in SPOKEN:
        for line in POSITIVE[signature.id]:
            said = line.partition("] ")[2] or line
            logged = f"Received request chatcmpl-1: prompt: '{said}', params: SamplingParams(n=1)"
            assert ids(f"(APIServer pid=1) INFO 11-29 15:29:23 [logger.py:41] {logged}\n") in (
                [],
                ["nixl.rail"],  # says that something works
            ), line


_CARRIER = (
    "(Worker pid=1) ERROR 11-29 15:29:23 [base_worker.py:1377] NIXL transfer failure: "
    "transfer_setup_failed | Context: {'request_id': 'cmpl-1'}\n"
    "(Worker pid=1) ERROR 11-29 15:29:23 [base_worker.py:1377] Traceback (most recent call last):\n"
    '(Worker pid=1) ERROR 11-29 15:29:23 [base_worker.py:1377]   File "x.py", line 3, in f\n'
    "(Worker pid=1) ERROR 11-29 15:29:23 [base_worker.py:1377] nixl_cu12._bindings.{}\n"
)


@pytest.mark.parametrize(
    "said",
    ["nixlNotFoundError: NIXL_ERR_NOT_FOUND", "nixlInvalidParamError: NIXL_ERR_INVALID_PARAM"],
)
def test_a_transfer_that_fails_is_not_taken_for_a_transport_that_does_not_load(said: str) -> None:
    assert ids(_CARRIER.replace("{}", said)) == ["nixl.transfer.failed"]


def test_efa_is_linked_to_gpu_memory_by_its_own_module() -> None:
    """`nvidia-peermem` is for Mellanox cards, and does not load on a p5en."""
    commands = BY_ID["efa.peer_memory.missing"].fix.commands
    assert "sudo modprobe efa_nv_peermem" in commands


def test_checks_that_a_fix_names_exist() -> None:
    known = [check.id for check in CHECKS]
    for signature in SIGNATURES:
        for command in signature.fix.commands:
            words = shlex.split(command)
            named = [after for word, after in pairwise(words) if word == "--only"]
            assert all(any(fnmatch(id, name) for id in known) for name in named), command
