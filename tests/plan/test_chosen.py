from dataclasses import replace
from itertools import count

from pdctl.plan.chosen import completed, kept
from pdctl.render.model import Chosen
from tests.plan.samples import deployment, state


def test_nothing_is_kept_of_nothing() -> None:
    assert kept(deployment(auto=True).processes, None) == Chosen()


def test_chosen_ports_are_kept_and_configured_ones_are_the_files() -> None:
    ids = {"prefill-0": "p-1", "decode-0": "d-1"}
    assert kept(deployment().processes, state()) == Chosen(engine_ids=ids)
    assert kept(deployment(auto=True).processes, state()) == Chosen(
        ports={"prefill-0": 8100, "decode-0": 8200, "router-0": 8000}, engine_ids=ids
    )
    assert kept(deployment(auto=True).processes, state(), not_again={"decode-0"}).ports == {
        "prefill-0": 8100,
        "router-0": 8000,
    }


def test_what_starts_gets_a_new_id_and_ports_that_differ() -> None:
    offers = iter([5600, 41, 41, 42, 43])
    numbers = count(1)
    shown = deployment(auto=True).processes
    chosen = completed(
        Chosen(engine_ids={"prefill-0": "p-1", "decode-0": "d-1"}),
        shown,
        ("decode-0", "router-0"),
        choose_port=lambda spec: next(offers),  # 5600 is prefill's side channel, 41 comes twice
        new_id=lambda spec: f"{spec.name}-{next(numbers)}",
    )
    assert chosen == Chosen(
        ports={"prefill-0": 41, "decode-0": 42, "router-0": 43},
        engine_ids={"prefill-0": "p-1", "decode-0": "decode-0-1"},
    )


def test_a_side_channel_of_zero_is_chosen_too() -> None:
    shown = [replace(spec, side_channel_port=0) for spec in deployment().processes[:2]]
    ports = count(50)
    chosen = completed(
        Chosen(), shown, (), choose_port=lambda spec: next(ports), new_id=lambda spec: "x"
    )
    assert chosen == Chosen(side_channel_ports={"prefill-0": 50, "decode-0": 51})
