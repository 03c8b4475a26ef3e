"""What a host or a bundle says must not command the terminal that shows it."""

from pdctl.base.facts import PairFacts
from pdctl.base.fix import Fix
from pdctl.doctor.table import Check, failed, run_checks


def test_no_control_sequence_is_shown() -> None:
    check = Check(
        "a.b", "t", "pair", "block", lambda facts, name: failed("\x1b[2Jboom\x07"), "m", Fix("f")
    )
    (found,) = run_checks(PairFacts(name="\x1b]0;x\x07", taken_at=0.0), [check])
    assert found.evidence == ("\ufffd[2Jboom\ufffd",)
    assert "\x1b" not in found.target
