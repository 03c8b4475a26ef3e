"""One model is validator, schema and docs: the three cannot drift apart."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.base.durations import parse_duration
from pdctl.config import shape
from pdctl.config.load import load
from pdctl.config.model import EXPECTED, Config
from pdctl.config.schema import json_schema, key_table

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yaml"))
CONFIGS = [path for path in EXAMPLES if "target:" in path.read_text()]


def nodes(value: object) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from nodes(inner)
    if isinstance(value, list):
        for inner in value:
            yield from nodes(inner)


def test_the_schema_says_what_it_is() -> None:
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["title"] == "pdctl deployment (pd.yaml)"
    assert schema["description"].startswith("A deployment: ")
    assert schema["required"] == ["name", "model", "target"]
    assert json.loads(json.dumps(schema)) == schema


def test_the_schema_refuses_unknown_keys_everywhere() -> None:
    schema = json_schema()
    sections = [node for node in nodes(schema) if "properties" in node]
    assert len(sections) == 1 + len(schema["$defs"])
    assert all(node["additionalProperties"] is False for node in sections)


def test_our_own_words_stay_out_of_the_schema() -> None:
    assert EXPECTED not in json.dumps(json_schema())
    assert EXPECTED in json.dumps(shape.schema()), "or the error messages have lost theirs"


def test_durations_are_numbers_or_text_in_the_schema() -> None:
    ttl = json_schema()["$defs"]["Kv"]["properties"]["decoder_ttl"]
    number, text = ttl["anyOf"]
    assert (number["type"], text["type"]) == ("number", "string")
    for written in ("480", "8m", "1h30m", "500ms", "7.5s"):
        assert re.search(text["pattern"], written)
        parse_duration(written)
    for written in ("1:30", "8 m", "m", "-1s", ""):
        assert not re.search(text["pattern"], written)
        with pytest.raises(ValueError, match="duration"):
            parse_duration(written)


@pytest.mark.parametrize("kind", shape.kinds())
def test_every_key_has_a_meaning_and_says_what_it_takes(kind: str) -> None:
    for path, node in shape.walk(kind):
        assert shape.meaning(node, kind), path
        assert shape.expected(node, kind), path


def test_every_kind_of_target_is_in_the_schema() -> None:
    assert shape.kinds() == ("local", "ssh", "ec2", "external")


def test_the_docs_have_the_key_table() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    _, _, rest = text.partition("<!-- keys: begin -->\n")
    table, end, _ = rest.partition("\n<!-- keys: end -->")
    assert end, "docs/configuration.md has lost its markers"
    assert table == key_table(), (
        "the keys have changed: write the output of "
        "`python -c 'from pdctl.config.schema import key_table; print(key_table())'` "
        "between the markers of docs/configuration.md"
    )


def test_the_key_table_has_every_key_once_a_table() -> None:
    table = key_table()
    for kind in shape.kinds():
        for path, _ in shape.walk(kind):
            assert f"| `{path[-1]}` |" in table
    headings = re.findall(r"^### (.*)$", table, re.M)
    assert len(headings) == len(set(headings))
    for section in table.split("### ")[1:]:
        keys = re.findall(r"^\| `(.*?)` \|", section, re.M)
        assert len(keys) == len(set(keys))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_examples_load(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=pd.schema.json\n")
    assert isinstance(load(path).config, Config)


def test_there_are_examples_of_each_kind() -> None:
    assert {load(path).config.target.kind for path in CONFIGS} == set(shape.kinds())


@pytest.mark.parametrize(
    ("template", "example"),
    [("local-cpu", "local-cpu"), ("ssh", "ssh-2p2d"), ("p5en", "p5en-1p1d")],
)
def test_init_writes_the_examples(template: str, example: str) -> None:
    written = (ROOT / "templates" / "init" / f"{template}.yaml").read_text()
    assert written == (ROOT / "examples" / f"{example}.yaml").read_text()


def test_the_demo_is_what_the_documents_say() -> None:
    config = load(ROOT / "examples" / "local-cpu.yaml").config
    assert config.model.id == "pdctl/tiny-random"
    assert (config.model.dtype, config.model.max_model_len) == ("float32", 8192)
    assert (config.engine.install, config.engine.vllm, config.engine.nixl) == (
        "cpu",
        "0.32.0",
        "1.5.1",
    )
    assert config.target.kind == "local"
    assert config.target.prefill.model_dump() == {"port": 8100, "side_channel_port": 5600}
    assert config.target.decode.model_dump() == {"port": 8200, "side_channel_port": 5601}
    assert (config.router.host, config.router.port) == ("127.0.0.1", 8000)


def test_the_published_setup_is_done_right() -> None:
    config = load(ROOT / "examples" / "p5en-1p1d.yaml").config
    assert (config.engine.vllm, config.engine.nixl) == ("0.33.0", "1.5.0")
    assert config.kv.backends == ["LIBFABRIC"]
    assert (config.kv.recompute_threshold, config.kv.decoder_ttl) == (64, 480.0)
    assert config.model.tensor_parallel_size == 8
    assert "engine_id:" not in (ROOT / "examples" / "p5en-1p1d.yaml").read_text()
