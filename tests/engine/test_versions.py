"""The version table: what it says, how it falls back, and that nobody else says otherwise."""

import tomllib
from pathlib import Path

import pytest

from pdctl.engine import versions
from pdctl.engine.table import as_markdown
from pdctl.engine.versions import NixlRange, release, traits

ROOT = Path(__file__).resolve().parents[2]


def test_rows_are_in_order_and_named() -> None:
    rows = versions.rows()
    assert list(rows) == sorted(rows, key=release)
    assert all(name == row.row and row.exact and not row.beyond for name, row in rows.items())
    assert next(iter(rows)) == versions.OLDEST
    assert versions.OLDEST_SAFE in rows


def test_every_cell_has_evidence_and_a_source() -> None:
    for row in versions.rows().values():
        for name, cell in row.cells().items():
            assert cell.source, (row.row, name)
            assert cell.evidence in ("measured", "read", "inferred"), (row.row, name)


def test_only_what_was_run_counts_as_measured() -> None:
    measured = {
        row.row
        for row in versions.rows().values()
        if any(cell.evidence == "measured" for cell in row.cells().values())
    }
    assert measured == {"0.32.0", "0.33.0"}


def test_releases_that_were_not_read_are_inferred_throughout() -> None:
    for version in ("0.22.0", "0.23.0", "0.25.0", "0.26.0", "0.28.0", "0.30.0"):
        cells = traits(version).cells().values()
        assert {cell.evidence for cell in cells} == {"inferred"}
        assert traits(version).connector_version.value is None


@pytest.mark.parametrize(
    ("version", "streaming", "ids", "render"),
    [
        ("0.27.1", False, False, "open"),
        ("0.31.0", False, False, "flag"),
        ("0.32.0", False, True, "flag"),
        ("0.33.0", True, True, "flag"),
    ],
)
def test_what_changed_when(version: str, streaming: bool, ids: bool, render: str) -> None:
    row = traits(version)
    assert row.streaming_handles.value is streaming
    assert row.pretokenised_ids.value is ids
    assert row.render_endpoint.value == render


def test_fields_of_the_published_command_are_refused_from_0_32_on() -> None:
    assert "kv_rank" in traits("0.31.0").top_level.value
    assert "kv_rank" not in traits("0.32.0").top_level.value


def test_a_name_that_was_never_released_is_in_no_row() -> None:
    assert "remote_pull_threshold" not in versions.every_kv_key()
    assert "decoder_kv_blocks_ttl" not in traits("0.21.0").kv_keys.value


@pytest.mark.parametrize(
    ("asked", "row", "beyond"),
    [
        ("0.32.1", "0.32.0", False),
        ("0.33.0rc1", "0.32.0", False),
        ("0.33.0.dev5", "0.32.0", False),
        ("0.29.4", "0.29.0", False),
        ("0.33.1", "0.33.0", True),
        ("1.0.0", "0.33.0", True),
    ],
)
def test_the_nearest_row_below_stands_in(asked: str, row: str, beyond: bool) -> None:
    nearest = traits(asked)
    assert (nearest.row, nearest.exact, nearest.beyond) == (row, False, beyond)
    assert {cell.evidence for cell in nearest.cells().values()} == {"inferred"}
    assert nearest.kv_keys.value == traits(row).kv_keys.value


@pytest.mark.parametrize("same", ["0.33.0", "0.33", "0.33.0+cu130", "0.33.0.post1"])
def test_builds_of_a_release_have_its_row(same: str) -> None:
    assert traits(same).exact


def test_older_than_the_table_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no bi-directional KV; it came with 0\.21\.0"):
        traits("0.20.0")
    with pytest.raises(ValueError, match="not a version"):
        release("main")


def test_libfabric_needs_nixl_1_5_0_exactly_with_vllm_0_33() -> None:
    fitting = traits("0.33.0").nixl.value["LIBFABRIC"]
    assert str(fitting) == "1.5.0 exactly"
    assert fitting.why_not("1.5.0") is None
    assert "check_nixl_version" in (fitting.why_not("1.4.1") or "")
    assert "FABRIC_1.10" in (fitting.why_not("1.5.1") or "")


def test_ucx_takes_what_was_measured() -> None:
    for nixl in ("1.4.1", "1.5.0", "1.5.1"):
        assert traits("0.32.0").nixl.value["UCX"].why_not(nixl) is None
    assert traits("0.33.0").nixl.value["UCX"].why_not("1.5.1") is None
    assert traits("0.33.0").nixl.value["UCX"].why_not("1.4.1")


def test_ranges_in_words() -> None:
    assert str(NixlRange(None, None)) == "any"
    assert str(NixlRange("1.0", None)) == "1.0 or newer"
    assert str(NixlRange(None, "1.5.0")) == "up to 1.5.0"
    assert str(NixlRange("1.4.0", "1.5.0")) == "1.4.0 to 1.5.0"


def test_defaults_fit_each_other() -> None:
    kinds: tuple[versions.InstallKind, ...] = ("cpu", "pip", "existing")
    for install in kinds:
        vllm = versions.default_vllm(install)
        nixl = versions.default_nixl(install, vllm)
        ranges = traits(vllm).nixl.value
        backends = ["UCX"] if install == "cpu" else ["UCX", "LIBFABRIC"]
        assert all(ranges[backend].why_not(nixl) is None for backend in backends)  # type: ignore[index]
    assert traits(versions.default_vllm("cpu")).cpu_wheel.value


def test_every_rows_own_default_fits_every_backend() -> None:
    for row in versions.rows().values():
        for fitting in row.nixl.value.values():
            assert fitting.why_not(row.default_nixl.value) is None, row.row


def test_the_engine_extra_is_the_default_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    vllm = versions.default_vllm("pip")
    assert project["optional-dependencies"]["engine"] == [
        f"vllm=={vllm}",
        f"nixl=={versions.default_nixl('pip', vllm)}",
    ]


def test_the_document_has_the_table_as_it_is() -> None:
    text = (ROOT / "docs" / "versions.md").read_text()
    between = text.partition("<!-- table: begin -->\n")[2].partition("<!-- table: end -->")[0]
    assert between.strip() == as_markdown().strip()


def test_the_document_names_the_defaults() -> None:
    text = (ROOT / "docs" / "versions.md").read_text()
    for install in ("cpu", "pip"):
        vllm = versions.default_vllm(install)
        assert f"| `{install}` | {vllm} | {versions.default_nixl(install, vllm)} |" in text
