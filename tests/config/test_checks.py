"""What several keys say together."""

import pytest

from tests.config.helpers import said

HEAD = "name: x\nmodel: {id: a/b}\n"
OTHER = "(choose another port)"


def lines(text: str) -> list[str]:
    return [line.removeprefix("pd.yaml:") for line in said(HEAD + text)]


def local(inside: str, rest: str = "") -> str:
    return f"target: {{kind: local{inside}}}\n{rest}"


PORTS = {
    # Told at the key that is in the file, whichever comes first.
    local(", prefill: {port: 8200}"): [
        "3:39 target.prefill.port: port 8200 is also taken by `target.decode.port` " + OTHER
    ],
    local(", prefill: {port: 5601}"): [
        "3:39 target.prefill.port: port 5601 is also taken by `target.decode.side_channel_port` "
        + OTHER
    ],
    local(", decode: {side_channel_port: 8000}"): [
        "3:51 target.decode.side_channel_port: port 8000 is also taken by `router.port` " + OTHER
    ],
    local(", prefill: {port: 7000}, decode: {port: 7000}"): [
        "3:61 target.decode.port: port 7000 is also taken by `target.prefill.port` " + OTHER
    ],
    local(", decode: {port: 0, side_channel_port: 0}, prefill: {port: 0}"): [],
    local("", "router: {port: 8100}"): [
        "4:16 router.port: port 8100 is also taken by `target.prefill.port` " + OTHER
    ],
    local("", "router: {port: 8199, replicas: 2, store: 'redis://h:6379/0'}"): [
        "4:16 router.port: ports 8199 to 8200 are also taken by `target.decode.port` " + OTHER
    ],
    # Each data-parallel rank of an engine has a side channel of its own.
    local("", "prefill: {data_parallel_size: 2}"): [
        "3:1 target.decode.side_channel_port: port 5601 is also taken by "
        "`target.prefill.side_channel_port`, which takes 5600 to 5601 " + OTHER
    ],
    local(", host: 0.0.0.0"): [
        "3:29 target.host: `0.0.0.0` is no address that engines can reach each other at "
        "(write 127.0.0.1, or this machine's own address)"
    ],
}


@pytest.mark.parametrize(("text", "words"), PORTS.items())
def test_local(text: str, words: list[str]) -> None:
    assert lines(text) == words


def ssh(prefill: str, decode: str, router: str = "", rest: str = "") -> str:
    return (
        f"target:\n  kind: ssh\n  hosts:\n    prefill: [{prefill}]\n    decode: [{decode}]\n"
        f"    router: [{router}]\n{rest}"
    )


SSH = {
    ssh("{address: p}", "{address: d}"): [],
    ssh("{address: h, gpus: [0]}", "{address: H, gpus: [1]}"): [
        "7:14 target.hosts.decode[0].port: port 8100 is also taken by "
        "`target.hosts.prefill[0].port` on h " + OTHER,
        "7:14 target.hosts.decode[0].side_channel_port: port 5600 is also taken by "
        "`target.hosts.prefill[0].side_channel_port` on h " + OTHER,
        "7:24 target.hosts.decode[0].address: is the same host as `target.hosts.prefill[0]`, with "
        "`address` written in another way (write a host in one way wherever it stands)",
    ],
    ssh(
        "{address: h, gpus: [0, 1]}",
        "{address: h, gpus: [1, 2], port: 8200, side_channel_port: 5601}",
    ): ["7:33 target.hosts.decode[0].gpus: GPU 1 also belongs to `target.hosts.prefill[0]`"],
    ssh(
        "{address: h, gpus: [0, 1]}",
        "{address: h, gpus: [1, 0], port: 8200, side_channel_port: 5601}",
    ): ["7:33 target.hosts.decode[0].gpus: GPUs 0, 1 also belong to `target.hosts.prefill[0]`"],
    ssh("{address: h}", "{address: h, port: 8200, side_channel_port: 5601}"): [
        "7:14 target.hosts.decode[0].gpus: is on the same host as `target.hosts.prefill[0]`, and "
        "not both say which GPUs they use (give each its own `gpus`, or another host)"
    ],
    ssh("{address: p, gpus: [0, 0]}", "{address: d}"): [
        "6:34 target.hosts.prefill[0].gpus: a GPU is listed twice"
    ],
    ssh("{address: p, cell: a}, {address: q}", "{address: d, cell: a}, {address: e}"): [],
    ssh("{address: p, cell: a}", "{address: d}", "{address: r, cell: a}"): [
        "6:15 target.hosts.prefill[0]: cell `a` has no decode host (give a decode host the same "
        "`cell`, or none of them one)",
        "7:14 target.hosts.decode[0]: its cell (that of hosts without) has no prefill host (give a "
        "prefill host the same `cell`, or none of them one)",
        "8:33 target.hosts.router[0].cell: a router serves all cells (remove it)",
    ],
    ssh("{address: 'fd00::1'}", "{address: d}", "{address: 'fd00:0::1'}"): [
        "8:24 target.hosts.router[0].address: is the same host as `target.hosts.prefill[0]`, with "
        "`address` written in another way (write a host in one way wherever it stands)"
    ],
    ssh("{address: p}", "{address: d}", "{address: p., ssh_port: 22}"): [
        "8:24 target.hosts.router[0].address: is the same host as `target.hosts.prefill[0]`, with "
        "`address` written in another way (write a host in one way wherever it stands)",
        "8:38 target.hosts.router[0].ssh_port: is the same host as `target.hosts.prefill[0]`, with "
        "`ssh_port` written in another way (write a host in one way wherever it stands)",
    ],
    # Behind one forwarded address there are two machines.
    ssh(
        "{address: gw, ssh_port: 2201, private_address: 10.0.0.1}",
        "{address: gw, ssh_port: 2202, private_address: 10.0.0.2}",
    ): [],
    ssh("{address: p, user: a}", "{address: d}", "{address: p, user: b}"): [
        "8:33 target.hosts.router[0].user: is the same host as `target.hosts.prefill[0]`, with "
        "another `user` (log in to a host in one way)"
    ],
    ssh("{address: p}", "{address: d}", rest="router: {port: 8100}"): [
        "9:16 router.port: port 8100 is also taken by `target.hosts.prefill[0].port` on p " + OTHER
    ],
    ssh("{address: p}", "{address: d}", "{address: d, port: 8100}"): [
        "8:33 target.hosts.router[0].port: port 8100 is also taken by "
        "`target.hosts.decode[0].port` on d " + OTHER
    ],
    ssh("{address: p}", "{address: d}", "{address: r}, {address: s}"): [
        "8:13 target.hosts.router: 2 router hosts, but `router.replicas` is 1"
    ],
    ssh("{address: p}", "{address: d}", rest="router: {replicas: 2, store: 'redis://h'}"): [
        "9:20 router.replicas: 2 routers need as many router hosts, and there are none "
        "(add `target.hosts.router`)"
    ],
    ssh("{address: p}", "{address: d}", rest="router: {request_log: r.jsonl}"): [
        "9:23 router.request_log: `r.jsonl` is a path on another host (write an absolute path)"
    ],
    ssh("{address: p}", "{address: d}", rest="  base_dir: pdctl\n  model_dir: ./m\n"): [
        "9:13 target.base_dir: `pdctl` is a path on another host (write an absolute path)",
        "10:14 target.model_dir: `./m` is a path on another host (write an absolute path)",
    ],
}


@pytest.mark.parametrize(("text", "words"), SSH.items())
def test_ssh(text: str, words: list[str]) -> None:
    assert lines(text) == words


def test_what_is_to_be_downloaded() -> None:
    digest = "0" * 64
    text = ssh("{address: p}", "{address: d}", rest=f"  efa_installer_sha256: '{digest}'\n")
    assert lines(text) == [
        "9:25 target.efa_installer_sha256: without `efa_installer` nothing is installed (name the "
        "version too)"
    ]
    assert lines(f'{text}  efa_installer: "1.50.0"\n') == []
    text = ssh("{address: p}", "{address: d}", rest="  model_source: s3://bucket/model\n")
    assert lines(text) == []
    found = said(HEAD.replace("a/b", "/models/m") + text)
    assert [line.removeprefix("pd.yaml:") for line in found] == [
        "9:17 target.model_source: the model is there without a download, as `model.id` says "
        "(remove it, or name the model's id)"
    ]


def external(prefill: str, decode: str, rest: str = "") -> str:
    return f"target:\n  kind: external\n  prefill: [{prefill}]\n  decode: [{decode}]\n{rest}"


EXTERNAL = {
    external('"http://a:1"', '"https://a:2/", "http://[::1]:8100"'): [],
    external('"http://a:1", "http://A:1/"', '"http://b"'): [
        "5:27 target.prefill[1]: is the same engine as `target.prefill[0]`"
    ],
    external('"http://a"', '"http://a:80"'): [
        "6:12 target.decode[0]: is the same engine as `target.prefill[0]`"
    ],
    external('"http://127.0.0.1:8000"', '"http://b"'): [
        "1:1 router.port: port 8000 is also taken by `target.prefill[0]` " + OTHER
    ],
    external(
        '"http://localhost:8001"',
        '"http://b:8001"',
        "router: {port: 8000, replicas: 2, store: 'redis://h'}",
    ): ["7:16 router.port: port 8001 is also taken by `target.prefill[0]` " + OTHER],
    external('"http://localhost:8000"', '"http://b"', "router: {port: 0}"): [],
}


@pytest.mark.parametrize(("text", "words"), EXTERNAL.items())
def test_external(text: str, words: list[str]) -> None:
    assert lines(text) == words


@pytest.mark.parametrize(
    "url",
    [
        "ftp://a",
        "a:8100",
        "http://",
        "http://a/v1",
        "http://a?x",
        "http://a#x",
        "http://me@a",
        "http://a:99999",
        "http://a:0",
        "http://[::1",
        "http://a b",
    ],
)
def test_external_urls(url: str) -> None:
    assert lines(external(f'"{url}"', '"http://b"')) == [
        f'5:13 target.prefill[0]: found the text "{url}", '
        "expected a URL such as `http://10.0.0.1:8100`, without a path"
    ]


def ec2(inside: str, rest: str = "") -> str:
    return f"target:\n  kind: ec2\n  region: us-west-2\n{inside}{rest}"


EC2 = {
    ec2("  zones: [us-west-2a, us-west-2-lax-1a]\n"): [],
    ec2("  zones: [us-east-1a, us-west-2a, us-west-2a]\n"): [
        "6:11 target.zones[0]: zone `us-east-1a` is not in `us-west-2` (such as `us-west-2a`)",
        "6:35 target.zones[2]: zone `us-west-2a` is listed twice",
    ],
    ec2("  capacity: {kind: odcr}\n"): ["6:20 target.capacity.kind: `odcr` needs `reservation_id`"],
    ec2("  capacity: {kind: capacity-block}\n"): [
        "6:20 target.capacity.kind: `capacity-block` needs `reservation_id`"
    ],
    ec2("  capacity: {reservation_id: cr-1}\n"): [
        "6:30 target.capacity.reservation_id: is not used by `on-demand` "
        "(set `kind: odcr` or `kind: capacity-block`, or remove it)"
    ],
    ec2("  capacity: {kind: odcr, reservation_id: cr-1}\n"): [],
    ec2("  network: {allow_from: [203.0.113.0/24, '2001:db8::/32']}\n"): [],
    ec2("  network: {allow_from: [0.0.0.0/0]}\n"): [
        "6:26 target.network.allow_from[0]: `0.0.0.0/0` opens SSH and the router to the whole "
        "internet (name your own network, or set `force_open: true`)"
    ],
    ec2("  network: {allow_from: ['::/0']}\n"): [
        "6:26 target.network.allow_from[0]: `::/0` opens SSH and the router to the whole "
        "internet (name your own network, or set `force_open: true`)"
    ],
    ec2("  network: {allow_from: [0.0.0.0/0], force_open: true}\n"): [],
    ec2("  network: {allow_from: [203.0.113.7, 203.0.113.7/24, office]}\n"): [
        "6:26 target.network.allow_from[0]: `203.0.113.7` is not a network "
        "(write `203.0.113.7/32`)",
        "6:39 target.network.allow_from[1]: `203.0.113.7/24` is not a network "
        "(write `203.0.113.0/24`)",
        "6:55 target.network.allow_from[2]: found `office`, expected a CIDR such as "
        "`203.0.113.0/24`",
    ],
    ec2("  instance_ids: {prefill: [i-1, i-2], decode: [i-1]}\n"): [
        "6:27 target.instance_ids.prefill: 2 instances, but `target.prefill.count` is 1",
        "6:48 target.instance_ids.decode[0]: `i-1` is listed twice",
    ],
    ec2("  instance_ids: {prefill: [i-1, i-2]}\n  prefill: {count: 2}\n"): [],
    ec2("  instance_ids: {router: [i-1, i-2]}\n"): [
        "6:26 target.instance_ids.router: 2 router hosts, but `router.replicas` is 1"
    ],
    ec2("", "router: {replicas: 2, store: 'redis://h'}\n"): [
        "6:20 router.replicas: 2 routers need as many router hosts, and there are none "
        "(add `target.router`)"
    ],
    ec2("  router: {count: 2}\n"): [
        "6:11 target.router: 2 router hosts, but `router.replicas` is 1"
    ],
    ec2("  port: 5600\n"): [
        "6:9 target.port: port 5600 is also taken by `target.side_channel_port` on the same host "
        + OTHER
    ],
    ec2("  port: 8000\n"): [
        "6:9 target.port: port 8000 is also taken by `router.port` on the same host " + OTHER
    ],
    ec2("  port: 8000\n  router: {}\n"): [],
}


@pytest.mark.parametrize(("text", "words"), EC2.items())
def test_ec2(text: str, words: list[str]) -> None:
    assert lines(text) == words


ROUTER = {
    "router: {host: 0.0.0.0}": [
        "4:16 router.host: `0.0.0.0` is reachable from elsewhere, and clients need no API key "
        "(set `api_keys_file`, or `allow_unauthenticated: true`)"
    ],
    "router: {host: example.com}": [
        "4:16 router.host: `example.com` is reachable from elsewhere, and clients need no API key "
        "(set `api_keys_file`, or `allow_unauthenticated: true`)"
    ],
    "router: {host: 0.0.0.0, api_keys_file: k}": [],
    "router: {tenant_salt: true, api_keys_file: k}": [],
    "router: {tenant_salt: true}": [
        "4:23 router.tenant_salt: has no effect without API keys, which tell tenants apart "
        "(set `api_keys_file`, or remove it)"
    ],
    "router: {host: 0.0.0.0, allow_unauthenticated: true}": [],
    "router: {renew_idle: 5m}": [],
    "router: {renew_idle: 5m}\nengine: {plugin: off}": [
        "4:22 router.renew_idle: decode cannot be asked to keep turns for longer without pdctl's "
        "plugin (remove one of the two)"
    ],
    "router: {host: 127.0.0.2}": [],
    "router: {host: '::1'}": [],
    "router: {host: localhost}": [],
    "router: {replicas: 2, port: 7000}": [
        "4:20 router.replicas: 2 routers with a store each would use a handle twice "
        "(set `store: redis://host:port/db`)"
    ],
    "router: {replicas: 2, port: 7000, store: 'rediss://user:pw@h:6380/1'}": [],
    "router: {source: ./vllm}": [
        "4:18 router.source: is used by `kind: vllm-example` only (remove it)"
    ],
    "router: {kind: vllm-example}": [
        "4:16 router.kind: `vllm-example` needs `source`: a checkout or source distribution of vLLM"
    ],
    "router: {kind: vllm-example, source: ./vllm}": [],
    "router: {kind: vllm-example, source: ./vllm, request_log_keep: 2}": [
        "4:46 router.request_log_keep: has no effect on `kind: vllm-example` (remove it)"
    ],
    "router: {kind: vllm-example, source: ./vllm, ttl: 400, reuse_share: 1.0}": [
        "4:46 router.ttl: has no effect on `kind: vllm-example` (remove it)",
        "4:56 router.reuse_share: has no effect on `kind: vllm-example` (remove it)",
    ],
}


@pytest.mark.parametrize(("text", "words"), ROUTER.items())
def test_router(text: str, words: list[str]) -> None:
    assert lines(local("", text)) == words


@pytest.mark.parametrize(
    "store", ["memory", "redis://h", "redis://h:6379", "redis://:pw@h:6379/2", "rediss://h/0"]
)
def test_stores(store: str) -> None:
    assert lines(local("", f"router: {{store: '{store}'}}")) == []


@pytest.mark.parametrize(
    "store", ["Memory", "redis", "http://h", "redis://", "redis://h/x", "redis://h/0/1"]
)
def test_stores_that_are_none(store: str) -> None:
    assert lines(local("", f"router: {{store: '{store}'}}")) == [
        f'4:17 router.store: found the text "{store}", expected `memory` or '
        "`redis://host:port/db` (`rediss://` for TLS; `valkey://` too)"
    ]
