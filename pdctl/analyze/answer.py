"""What `analyze` answers."""

from dataclasses import dataclass

from pdctl.analyze.scan import Scanned
from pdctl.analyze.sums import Sums


@dataclass(frozen=True)
class Answer:
    """All that was found out, in the order of the JSON output.

    Attributes:
        follow_up_turns: turns that have one before them in their conversation.
        repeated_share: of their prompt tokens, those that the prompt before had: a lower bound,
            since decode also holds the answer. None without follow-up turns.
        late_share: of them, those that start later than the TTL after the start of the one
            before.
        exact_share: `repeated_share` with the answers, over turns whose earlier one has its
            answer's length logged; None where none has.
    """

    follow_up_turns: int
    repeated_share: float | None
    late_share: float | None
    exact_share: float | None
    requests: int
    conversations: int

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return dict(self.__dict__)


def answer_of(scanned: Scanned) -> Answer:
    """Conclude from what was found."""
    sums: Sums = scanned.tally.sums
    return Answer(
        follow_up_turns=sums.follow_ups,
        repeated_share=share(sums.repeated, sums.prompt),
        late_share=share(sums.late, sums.follow_ups),
        exact_share=share(sums.answered_repeated, sums.answered_prompt),
        requests=scanned.tally.rows,
        conversations=len(scanned.tally.last),
    )


def share(part: int, whole: int) -> float | None:
    """None of nothing."""
    return part / whole if whole else None
