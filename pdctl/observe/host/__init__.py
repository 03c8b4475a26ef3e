"""Looking at a host: one command to it, one script that asks everything, pure parsers for answers.

    wants = wants_of(config, place, deployment, started=names)
    facts = read_host(host, wants[name])

`read_host` never raises: what went wrong is in the facts.
"""

from pdctl.observe.host.read import read_host as read_host
from pdctl.observe.host.want import wants_of as wants_of
