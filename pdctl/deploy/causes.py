"""Finding, in what a dying process wrote, the line that says why. Pure.

vLLM's server ends with a long trace that only says that its engine core failed; the core's own
exception stands some hundred lines above.
"""

import re
from collections.abc import Iterable, Sequence

# `(EngineCore pid=19453) ERROR 11-29 18:46:38 [core.py:1510] ` before what was said.
_PREFIX = re.compile(r"^(?:\([^)]*pid=\d+\)\s*)?(?:(?:ERROR|CRITICAL) \S+ \S+ \[[^\]]*\]\s?)?")
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b: \S")
_SAYS_NOTHING = re.compile(r"Engine core initialization failed|See (?:root cause|stack trace)")
_MOST = 3


def find_causes(lines: Iterable[str]) -> list[str]:
    """Exceptions in the order they came, each once, without those that only point at another."""
    found: dict[str, None] = {}
    for line in lines:
        said = _PREFIX.sub("", line.strip(), count=1)
        if _EXCEPTION.match(said) and not _SAYS_NOTHING.search(said):
            found[said] = None
    return list(found)[:_MOST]


def evidence(lines: Sequence[str], shown: int) -> list[str]:
    """What to show of a log: causes that the last lines do not hold, then the last lines."""
    last = list(lines[-shown:])
    if not last:
        return ["it wrote nothing to its log"]
    causes = [each for each in find_causes(lines) if not any(each in line for line in last)]
    above = ["it seems because:", *causes] if causes else []
    return [*above, "its last lines:", *last]
