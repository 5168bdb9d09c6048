"""What the preflight makes of what tablets' throttlers say, and of a vtctld."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_cdc_provider.sources.vitess.check import DEFAULT_RULES, SnapshotRules, check_keyspace
from airflow_cdc_provider.sources.vitess.connection import ConnectionValues
from airflow_cdc_provider.sources.vitess.options import VitessAdvanced, VitessOptions
from tests.unit.sources.vitess.fake_vtctld import FakeVtctld
from tests.unit.sources.vitess.fake_vtgate import FakeVtgate, Waits, event, response, vgtid

TABLETS: list[tuple[str, ...]] = [
    ("z", "shop", shard, "REPLICA", "SERVING", f"z-{n}") for n, shard in enumerate(("-80", "80-"))
]


def standing(request: Any) -> list[bytes | Waits]:
    shards: dict[str, int | str] = {s.shard: 30 for s in request.vgtid.shard_gtids}
    return [
        response(event("VGTID", shard, vgtid=vgtid(shards)), event("OTHER", shard)) for shard in shards
    ] + [Waits()]


def found(
    status: str,
    kind: str = "REPLICA",
    /,
    *,
    reference: bool = False,
    rules: SnapshotRules = DEFAULT_RULES,
    **extra: Any,
) -> dict[str, tuple[str, str]]:
    """Return level and message of the findings, by subject."""
    replication = ("shop", "-80", kind, "z-0", "host", "host:3306", "{}", "0", status)
    answers: dict[str, list[tuple[str, ...]]] = {
        "version_comment": [("Version: 24.0.2",)],
        "VITESS_REPLICATION_STATUS": [replication],
        "VITESS_SHARDS": [("shop/-80",), ("shop/80-",)],
        "VITESS_TABLETS": TABLETS,
        "FULL TABLES": [("item", "BASE TABLE"), ("b`q", "BASE TABLE"), ("at", "BASE TABLE")],
        "schema_version": [("1",)],
        "information_schema.columns": [
            ("item", "id", "bigint"),
            ("item", "_deleted", "json"),
            ("item", "kind", "ENUM"),
            ("other", "_cdc", "json"),
            ("at", "@1", "int"),
        ],
        "VEXPLAIN": [('{"OperatorType": "Route", "Variant": "Reference"}',)] if reference else [],
    }
    with FakeVtgate([standing], answers) as vtgate:
        options = VitessOptions(
            keyspace="shop", tablet_type="REPLICA", advanced=VitessAdvanced(call_timeout_seconds=5)
        )
        connection = vtgate.connection
        values = ConnectionValues.read({**connection, "extra": {**connection["extra"], **extra}})
        findings = check_keyspace(values, options, lambda table: True, None, rules)
    return {finding.subject: (finding.level, finding.message) for finding in findings}


@pytest.mark.parametrize(
    ("status", "reported"),
    [
        ('{"state":"Too Many Requests","load":140.50,"message":"threshold exceeded"}', "z-0 (load 140.5 %"),
        ('{"state":"","load":100.00,"message":""}', "z-0 (load 100 %)"),
        ('{"state":"Internal Server Error","load":0.00,"message":"no lag"}', "Internal Server Error, no lag"),
    ],
)
def test_throttled_tablets_are_reported(status: str, reported: str) -> None:
    level, message = found(status)["throttler"]
    assert level == "warning"
    assert reported in message


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        ('{"state":"OK","load":99.90,"message":""}', "REPLICA"),
        ('{"state":"","load":0.00,"message":""}', "REPLICA"),
        ("", "REPLICA"),
        ('{"state":"Too Many Requests","load":140.50,"message":""}', "RDONLY"),
    ],
)
def test_others_are_not(status: str, kind: str) -> None:
    assert "throttler" not in found(status, kind)


def test_reference_tables_are_named_with_the_shard_that_is_read() -> None:
    assert found("", reference=True)["reference tables"] == (
        "note",
        "shop.at, shop.b`q, shop.item: all shards have the same rows, shop/-80 is read",
    )
    assert "reference tables" not in found("")


def test_columns_with_other_names_in_the_mirror_are_named() -> None:
    level, message = found("")["names"]
    assert (level, message.endswith("in new mirrors of shop.item: _deleted is _deleted__2")) == (
        "warning",
        True,
    )


@pytest.mark.parametrize(
    ("rules", "json", "enum"),
    [
        (DEFAULT_RULES, "reads the table again in full", "the next sync reads the table in full"),
        (SnapshotRules(on_lost_table="snapshot"), "in full", "these, and the same sync reads the table"),
        (SnapshotRules(on_lost_table="continue"), "in full", "lacks them until the next snapshot"),
        (SnapshotRules(never=True), "keeps its text in _rest", "needs a snapshot on request"),
        (SnapshotRules(never=True, on_lost_table="fail"), "_rest", "until an operator intervenes"),
    ],
)
def test_what_types_cost_is_said_once_by_what_the_declaration_chooses(
    rules: SnapshotRules, json: str, enum: str
) -> None:
    notes = {
        subject: message for subject, (level, message) in found("", rules=rules).items() if level == "note"
    }
    assert notes["JSON"].startswith("item: ")
    assert json in notes["JSON"]
    assert enum in notes["ENUM and SET"]
    assert ("added columns" in notes) == rules.never


def test_tables_that_vtgate_cant_copy_or_stream_are_named() -> None:
    findings = found("")
    assert findings["shop.b`q"] == ("warning", "VTGate can't copy a table with ` in its name")
    level, message = findings["shop.at"]
    assert (level, "can't stream" in message, "@1" in message) == ("warning", True, True)


def test_the_vtctld_of_the_connection_is_checked() -> None:
    with FakeVtctld(("cdc", "word")) as vtctld:
        place: dict[str, Any] = {"vtctld_host": "127.0.0.1", "vtctld_port": vtctld.port}
        login: dict[str, Any] = {"vtctld_login": "cdc", "vtctld_password": "word"}
        assert found("", **place, **login)["vtctld"] == ("ok", "returns the positions of 2 shards")
        level, message = found("", **place)["vtctld"]
    assert (level, "UNAUTHENTICATED" in message) == ("error", True)
    assert "vtctld" not in found("")
