"""Where servers answer: from what was started, or from what the configuration says."""

from dataclasses import dataclass

import pytest

from pdctl.base.errors import UnreachableError
from pdctl.base.process import RoleName
from pdctl.config.model import Config
from pdctl.observe.endpoints import Endpoint, best_key, endpoints_of, first_key, tenant_key


@dataclass(frozen=True)
class Process:
    name: str
    role: RoleName
    port: int
    address: str = "127.0.0.1"
    host: str = "localhost"

    @property
    def url(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"http://{address}:{self.port}"


def config(target: dict[str, object], **sections: object) -> Config:
    return Config.model_validate(
        {"name": "demo", "model": {"id": "m", "dtype": "float32"}, "target": target, **sections}
    )


LOCAL = config({"kind": "local"}, kv={"bidirectional": False, "recompute_threshold": 8})


def test_started_processes_in_the_order_of_roles() -> None:
    found = endpoints_of(
        LOCAL,
        [
            Process("router-0", "router", 3),
            Process("decode-0", "decode", 2),
            Process("prefill-0", "prefill", 1),
        ],
        engine_key="k",
    )
    assert [engine.url for engine in found.engines] == ["http://127.0.0.1:1", "http://127.0.0.1:2"]
    assert found.router == Endpoint("router-0", "router", "localhost", "http://127.0.0.1:3")
    assert (found.name, found.dtype, found.bidirectional, found.threshold) == (
        "demo",
        "float32",
        False,
        8,
    )
    assert [engine.name for engine in found.role("decode")] == ["decode-0"]
    assert found.by_url("http://127.0.0.1:1/") == found.engines[0]
    assert found.by_url("http://other") is None
    assert "engine_key" not in repr(found)


def test_external_engines_come_from_the_configuration() -> None:
    external = config(
        {"kind": "external", "prefill": ["http://a:1/"], "decode": ["http://b:2", "http://c:3"]}
    )
    found = endpoints_of(external, [Process("router-0", "router", 8000)])
    assert [(engine.name, engine.url) for engine in found.engines] == [
        ("prefill-0", "http://a:1"),
        ("decode-0", "http://b:2"),
        ("decode-1", "http://c:3"),
    ]
    assert found.router is not None


def test_a_port_that_was_never_chosen_means_never_started() -> None:
    with pytest.raises(UnreachableError, match="`decode-0` has no port yet"):
        endpoints_of(LOCAL, [Process("prefill-0", "prefill", 1), Process("decode-0", "decode", 0)])


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", None),
        ("# nobody yet\n\n", None),
        ("abc\ndef\n", "abc"),
        ("# team\nteam: abc # ours\n", "abc"),
        ("a:b:c\n", "b:c"),
        ("sha256:00\na: sha256:00\nb:shown\n", "shown"),
    ],
)
def test_the_first_key_of_a_file(text: str, key: str | None) -> None:
    assert first_key(text) == key


@pytest.mark.parametrize(
    ("text", "key"),
    [("acme:one\nadmin:two\n", "two"), ("acme:one\nadmin:sha256:00\n", "one"), ("", None)],
)
def test_the_admins_key_is_the_best(text: str, key: str | None) -> None:
    assert best_key(text) == key


def test_a_tenants_key() -> None:
    text = "bare\nadmin:sha256:00\nadmin : one # first\nadmin:two\n"
    assert tenant_key(text, "admin") == "one"
    assert tenant_key(text, "acme") is None
