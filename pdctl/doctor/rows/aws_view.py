"""How judges of AWS look at its facts: what they need of them, or a skip that says why not."""

from collections.abc import Callable

from pdctl.base.awsfacts import AwsFacts
from pdctl.base.facts import PairFacts
from pdctl.doctor.table import Fix, Judge, Verdict, failed, skipped

AwsJudge = Callable[[AwsFacts, PairFacts], Verdict]

NOT_EC2 = "the target is not EC2"
NONE_YET = "no instance of this deployment exists yet"


def of_aws(judge: AwsJudge, *parts: str, named: str | None = None) -> Judge:
    """A judge that needs these parts; skips where one could not be asked, and says why.

    Args:
        parts: as `AwsFacts.problems` names them.
        named: one of these of which the configuration names a thing: that EC2 does not know it is
            a failure.
    """

    def judged(facts: PairFacts, _: str) -> Verdict:
        aws = facts.aws
        if aws is None:
            return skipped(not_asked(facts))
        for part in parts:
            problem = aws.problems.get(part, "")
            if part == named and problem.startswith("Invalid"):
                return failed(problem, fix=Fix("mend the id or the name in the configuration"))
            if getattr(aws, part) is None:
                return skipped(aws.problems.get(part) or f"EC2 was not asked about its {part}")
        return judge(aws, facts)

    return judged


def not_asked(facts: PairFacts) -> str:
    """Why there is nothing of AWS."""
    return facts.not_asked.get("aws", NOT_EC2)


def of_efa(judge: AwsJudge, *parts: str, named: str | None = None) -> Judge:
    """The same for what matters only where KV goes over EFA."""
    inner = of_aws(judge, *parts, named=named)

    def judged(facts: PairFacts, target: str) -> Verdict:
        if facts.aws is not None and not facts.aws.want.over_efa:
            return skipped("this deployment does not use EFA")
        return inner(facts, target)

    return judged


def of_engines(judge: AwsJudge, *parts: str, efa: bool = False) -> Judge:
    """The same for instances of engines that exist."""

    def judged(aws: AwsFacts, facts: PairFacts) -> Verdict:
        return judge(aws, facts) if aws.engines else skipped(NONE_YET)

    return (of_efa if efa else of_aws)(judged, "instances", *parts)
