"""How much has to go."""

import pytest

from pdctl.router.retention import held_by_others, shortfall


@pytest.mark.parametrize(
    ("capacity", "retained", "running", "others", "missing"),
    [
        (None, 500, 500, 0, 0),
        (1000, 500, 450, 0, 0),
        (1000, 500, 460, 0, 10),
        (1000, 500, 100, 400, 50),
        (1000, 50, 2000, 0, 50),
        (1000, 0, 2000, 0, 0),
    ],
)
def test_what_is_missing_is_given_back_as_far_as_it_is_retained(
    capacity: int | None, retained: int, running: int, others: int, missing: int
) -> None:
    assert shortfall(capacity, retained, running, others) == missing


def test_others_hold_what_decode_says_is_used_and_nobody_here_accounts_for() -> None:
    assert held_by_others(1000, 0.7, 300, 100) == 300
    assert held_by_others(1000, 0.3, 300, 100) == 0
    assert held_by_others(None, 0.3, 0, 0) == 0
    assert held_by_others(1000, None, 0, 0) == 0
