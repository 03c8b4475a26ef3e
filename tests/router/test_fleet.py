"""Who gets a request, and when a pair may be offered a handle again."""

from collections import Counter

from pdctl.router.eligible import COMPLETIONS
from pdctl.router.fleet import Fleet
from pdctl.router.prefixes import keys
from tests.router.playbook import a_fleet

P = ("http://p1", "http://p2", "http://p3")
D = ("http://d1", "http://d2", "http://d3")
PAIR = (P[0], D[0])
START = "e1"


def fleet_of_three(room: int | None = None) -> Fleet:
    fleet = a_fleet(prefill=P, decode=D)
    for url in D:
        fleet.decode[url].capacity_tokens = room
    return fleet


def test_prefill_is_the_one_with_the_least_to_do() -> None:
    fleet = fleet_of_three()
    for url, busy in zip(P, (5000, 3000, 4000), strict=True):
        fleet.prefill[url].outstanding = busy
    assert fleet.choose_prefill(tokens=1000) == P[1]
    # What is computed again costs more than its own time.
    assert fleet.choose_prefill(tokens=2500, known={P[0]: 700}) == P[0]
    assert fleet.choose_prefill(tokens=2500, known={P[0]: 600}) == P[1]


def test_a_known_prefix_saves_no_more_than_the_prompt_has() -> None:
    fleet = fleet_of_three()
    fleet.prefill[P[0]].outstanding = 100
    assert fleet.choose_prefill(tokens=20, known={P[0]: 100_000}) != P[0]


def test_engines_that_are_down_or_avoided_are_not_chosen() -> None:
    fleet = fleet_of_three()
    fleet.engine_down(P[0], "test")
    fleet.engine_down(D[0], "test")
    for _ in range(4):
        assert fleet.choose_prefill(known={P[0]: 10**6}, avoid=[P[1]]) == P[2]
        assert fleet.choose_decode(hint=D[0], held=10**6, avoid=[D[1]]) == D[2]
    assert fleet.choose_prefill(avoid=P) is None
    assert fleet.choose_decode(avoid=D) is None


def test_equals_get_equal_shares_also_when_each_request_asks_twice() -> None:
    fleet = fleet_of_three()
    for choose, urls in ((fleet.choose_prefill, P), (fleet.choose_decode, D)):
        second: Counter[str | None] = Counter()
        for _ in range(300):
            choose()
            second[choose()] += 1
        assert set(second) == set(urls)
        assert min(second.values()) > 50


def test_a_conversation_stays_until_its_server_is_clearly_overloaded() -> None:
    fleet = fleet_of_three(room=100_000)
    own = fleet.decode[D[0]]
    own.outstanding = 20_000
    assert fleet.choose_decode(hint=D[0], held=10_000, tokens=10_100) == D[0]
    own.outstanding = 30_000
    assert fleet.choose_decode(hint=D[0], held=10_000, tokens=10_100) != D[0]
    for other in D[1:]:
        fleet.decode[other].outstanding = 15_000
    assert fleet.choose_decode(hint=D[0], held=10_000, tokens=10_100) == D[0]


def test_load_that_is_small_for_the_server_moves_nobody() -> None:
    fleet = fleet_of_three(room=100_000)
    fleet.decode[D[0]].outstanding = 9_000
    assert fleet.choose_decode(hint=D[0], held=10, tokens=20) == D[0]
    fleet.decode[D[0]].outstanding = 11_000
    assert fleet.choose_decode(hint=D[0], held=10, tokens=20) != D[0]


def test_where_all_are_busy_nobody_moves_to_one_that_is_nearly_as_busy() -> None:
    fleet = fleet_of_three(room=100_000)
    for url, busy in zip(D, (79_000, 40_000, 40_000), strict=True):
        fleet.decode[url].outstanding = busy
    assert fleet.choose_decode(hint=D[0], held=10, tokens=20) == D[0]


def test_a_server_without_room_for_those_who_wait_is_overloaded() -> None:
    fleet = fleet_of_three(room=100_000)
    fleet.decode[D[0]].waiting = 2
    assert fleet.choose_decode(hint=D[0], held=1000, tokens=1000) == D[0]
    fleet.decode[D[0]].waiting = 3
    assert fleet.choose_decode(hint=D[0], held=1000, tokens=1000) != D[0]
    assert {fleet.choose_decode(tokens=1000) for _ in range(40)} == set(D[1:])


def test_new_conversations_go_where_less_is_retained() -> None:
    fleet = fleet_of_three()
    for url, retained in zip(D, (70_000, 20_000, 50_000), strict=True):
        fleet.decode[url].capacity_tokens = 100_000
        fleet.decode[url].retained = retained
    assert fleet.choose_decode(tokens=1000) == D[1]
    # But what is retained takes no time: work counts as well.
    fleet.decode[D[1]].outstanding = 3000
    assert fleet.choose_decode(tokens=1000) == D[2]


def test_more_may_be_retained_than_there_is_room() -> None:
    """Counts of tokens are rounded, and a handle may be gone without our knowledge."""
    fleet = fleet_of_three()
    for url in D:
        fleet.decode[url].capacity_tokens = 1000
        fleet.decode[url].retained = 5000
    fleet.decode[D[0]].retained = 0
    assert fleet.choose_decode(tokens=10) == D[0]


def test_a_pair_whose_blocks_do_not_arrive_is_the_last_choice() -> None:
    fleet = fleet_of_three()
    for d in D[:2]:
        pair = fleet.pairs[(P[0], d)]
        pair.moves_kv, pair.verdict = False, "no_reuse"
    assert {fleet.choose_decode(prefill=P[0]) for _ in range(40)} == {D[2]}
    assert fleet.choose_decode(prefill=P[0], hint=D[0], held=9000) == D[2]
    assert fleet.choose_decode(prefill=P[0], avoid=[D[2]]) in D[:2]
    assert {fleet.choose_prefill() for _ in range(60)} == set(P)
    pair = fleet.pairs[(P[0], D[2])]
    pair.moves_kv, pair.verdict = False, "no_reuse"
    assert {fleet.choose_prefill() for _ in range(40)} == set(P[1:])
    assert fleet.choose_prefill(avoid=P[1:]) == P[0]


def test_a_pair_that_waits_for_its_probe_gets_no_turn_while_there_is_another() -> None:
    fleet = fleet_of_three()
    fleet.engine_up(D[0], start="2", block_size=4)
    assert {fleet.choose_decode(prefill=P[0]) for _ in range(60)} == set(D[1:])
    assert fleet.choose_decode(prefill=P[0], hint=D[0], held=9000) != D[0]
    assert fleet.choose_decode(prefill=P[0], avoid=D[1:]) == D[0]
    fleet.engine_up(P[0], start="2", block_size=4)
    assert {fleet.choose_prefill() for _ in range(60)} == set(P[1:])
    # All wait when the router starts.
    for url in (*P, *D):
        fleet.engine_up(url, start="3", block_size=4)
    assert {fleet.choose_prefill() for _ in range(60)} == set(P)
    assert {fleet.choose_decode(prefill=P[0]) for _ in range(60)} == set(D)


# The breaker.


def test_after_a_pause_one_request_tries_and_the_others_wait_for_it() -> None:
    fleet = fleet_of_three()
    assert fleet.reuse_starts(*PAIR, START, 0.0) is None
    fleet.reuse_failed(*PAIR, START, 0.0)
    assert fleet.reuse_starts(*PAIR, START, 4.9) == "pair_paused"
    assert fleet.reuse_starts(*PAIR, START, 5.0) is None
    for now in (5.0, 6.0, 60.0):
        assert fleet.reuse_starts(*PAIR, START, now) == "pair_paused"
        assert fleet.reuse_refused(*PAIR, START, now) == "pair_paused"
    fleet.reuse_worked(*PAIR, START, 61.0)
    assert [fleet.reuse_starts(*PAIR, START, 61.0) for _ in range(3)] == [None] * 3


def test_each_failed_trial_doubles_the_pause_up_to_a_minute() -> None:
    fleet = fleet_of_three()
    now, lengths = 0.0, []
    fleet.reuse_failed(*PAIR, START, now)
    for _ in range(6):
        began = now
        while fleet.reuse_starts(*PAIR, START, now) is not None:
            now += 1.0
        lengths.append(now - began)
        fleet.reuse_failed(*PAIR, START, now)
    assert lengths == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]


def test_many_that_fail_at_once_are_one_failure() -> None:
    fleet = fleet_of_three()
    for _ in range(10):
        fleet.reuse_failed(*PAIR, START, 0.0)
    assert fleet.reuse_starts(*PAIR, START, 5.0) is None


def test_one_that_began_before_the_pause_does_not_end_it() -> None:
    fleet = fleet_of_three()
    fleet.reuse_failed(*PAIR, START, 0.0)
    fleet.reuse_worked(*PAIR, START, 1.0)
    assert fleet.reuse_refused(*PAIR, START, 1.0) == "pair_paused"


def test_a_trial_that_did_not_take_place_leaves_it_to_the_next() -> None:
    fleet = fleet_of_three()
    fleet.reuse_failed(*PAIR, START, 0.0)
    assert fleet.reuse_starts(*PAIR, START, 5.0) is None
    fleet.reuse_dropped(*PAIR, START, 5.0)
    assert fleet.reuse_starts(*PAIR, START, 5.0) is None


def test_a_trial_of_which_nothing_is_heard_does_not_close_the_pair_for_ever() -> None:
    fleet = fleet_of_three()
    fleet.reuse_failed(*PAIR, START, 0.0)
    assert fleet.reuse_starts(*PAIR, START, 5.0) is None
    assert fleet.reuse_starts(*PAIR, START, 126.0) is None


def test_what_did_not_start_has_nothing_to_drop() -> None:
    fleet = fleet_of_three()
    fleet.reuse_dropped(*PAIR, START, 0.0)
    fleet.reuse_failed(*PAIR, START, 0.0)
    fleet.reuse_dropped(*PAIR, START, 1.0)
    assert fleet.reuse_refused(*PAIR, START, 1.0) == "pair_paused"


def test_pauses_are_of_one_pair_and_one_start() -> None:
    fleet = fleet_of_three()
    fleet.reuse_failed(*PAIR, START, 0.0)
    assert fleet.reuse_refused(*PAIR, "e2", 1.0) is None
    assert fleet.reuse_refused(P[0], D[1], START, 1.0) is None


def test_a_quarantine_ends_reuse_of_one_pair_and_a_restart_ends_it() -> None:
    fleet = fleet_of_three()
    fleet.quarantine(*PAIR, "the shadow audit found other logprobs")
    assert fleet.reuse_starts(*PAIR, START, 1e9) == "pair_not_proven"
    assert fleet.reuse_starts(P[0], D[1], START, 0.0) is None
    # It still serves, cold.
    assert fleet.choose_decode(prefill=P[0], avoid=D[1:]) == D[0]
    assert {fleet.choose_prefill() for _ in range(60)} == set(P)
    fleet.engine_up(P[0], start="2", block_size=4)
    assert not fleet.pairs[PAIR].final
    assert fleet.pairs[PAIR].verdict == "unknown"


def test_a_prefill_server_that_restarted_has_no_prefixes() -> None:
    fleet = fleet_of_three()
    prompt = keys(COMPLETIONS, {"prompt": "word " * 400})
    fleet.prefixes.note(prompt, P[0])
    fleet.engine_up(P[0], start="1", block_size=4)
    assert fleet.prefixes.known(prompt) == {P[0]: 500}
    fleet.engine_up(P[0], start="2", block_size=4)
    assert fleet.prefixes.known(prompt) == {}


def test_a_refused_request_releases_where_the_engines_have_met() -> None:
    fleet = fleet_of_three()
    fleet.prefill[P[0]].version = "0.32.0"
    assert fleet.releases_by_refusal(*PAIR)
    assert not fleet.releases_by_refusal(P[0], "http://elsewhere")
    # Prefill's flag is off: what it refuses still frees a handle, what it reads does not.
    fleet.pairs[PAIR].verdict = "no_reuse"
    assert fleet.releases_by_refusal(*PAIR)
    fleet.prefill[P[0]].version = "0.31.2"
    assert not fleet.releases_by_refusal(*PAIR)
    fleet.engine_up(P[0], start="2", block_size=4)
    fleet.prefill[P[0]].version = "0.33.0"
    assert not fleet.releases_by_refusal(*PAIR)
