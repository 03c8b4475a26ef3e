#!/bin/sh
# Run parts of the checks in order and print the time of each: tests/run.sh PART...
# Stops at the first part that fails; the times of what ran are printed all the same.
set -u
times=""
status=0

lint() {
    "$BIN/ruff" check . && "$BIN/ruff" format --check . && "$BIN/mypy" && "$BIN/lint-imports"
}
unit() { "$BIN/pytest" tests -m "not e2e and not lab and not soak" --ignore=tests/e2e; }
e2e() { "$BIN/pytest" tests/e2e -m "not soak"; }
lab() { "$BIN/pytest" tests/lab -m "not soak"; }
soak() { "$BIN/pytest" tests -m soak; }

for part in "$@"; do
    echo "== $part"
    began=$(date +%s)
    "$part" || status=$?
    times="$times
$(printf '%-6s %5d s' "$part" $(($(date +%s) - began)))"
    [ "$status" -eq 0 ] || break
done
echo "== time of each part$times"
exit "$status"
