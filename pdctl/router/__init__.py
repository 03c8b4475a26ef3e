"""The multi-turn router: a pure core and a thin aiohttp shell.

Pure: `core` is one turn, which yields `actions`; `legs` are the bodies it sends and what of the
answer the client gets. `eligible`, `match`, `ids` and `handle` say what may be reused; `fleet`,
`prefixes`, `retention` and `vitals` know the servers; `audit` compares.

Shell: `server` has the routes and the process, `front` the HTTP that clients see, `driver` performs
a turn, `giving` gives blocks back. `watch` looks at the engines, `probe` proves a pair, `auditor`
runs audits, all by `engines`, which speaks through `wire`. A `store` is `memory` or `redis_store`.
"""
