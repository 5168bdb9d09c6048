"""The preflight, and what it finds, on real servers."""

from __future__ import annotations

import re
import time
from contextlib import closing
from typing import Any

import pytest

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.registry import source_plugin
from airflow_cdc_provider.sources.vitess.options import VitessOptions, VitessStream
from airflow_cdc_provider.sources.vitess.source import VitessSource
from airflow_cdc_provider.sources.vitess.tablets import list_tablets
from server_kit import VitessServer
from tests.integration.sources.vitess.checked_sources import findings, source

pytestmark = pytest.mark.integration


def test_sound_keyspace_has_nothing_to_find(vitess_server: VitessServer) -> None:
    vitess_server.define("shop", "CREATE TABLE chk_a (id bigint PRIMARY KEY)", shard_by={"chk_a": "id"})
    for kind in ("PRIMARY", "REPLICA", "RDONLY"):
        capture = source(vitess_server, tables=r"shop\.chk_a", tablet_type=kind)
        found = capture.check(capture.head())
        capture.close()
        assert findings(found) == {}
        reported = findings(found, "ok")
        assert "Vitess 24.0.4 answers" in reported["connection"]
        assert "shop has the shards -80, 80-" in reported["keyspace"]
        assert "1 selected: chk_a" in reported["tables"]
        assert "retained for 3 d 0 h" in reported["binlogs"]
        assert "0 transactions behind" in reported["stored offset"]


def test_each_missing_prerequisite_is_reported_with_a_remedy(vitess_server: VitessServer) -> None:
    vitess_server.define(
        "lookup", "CREATE TABLE chk_keyless (id bigint)", "CREATE TABLE chk_null (id int UNIQUE)"
    )
    vitess_server.define("lookup", "CREATE TABLE chk_unique (id int NOT NULL UNIQUE)")
    keyless = source(vitess_server, "lookup", r"lookup\.chk_.*")
    assert (
        "without a primary key can't be mirrored incrementally: chk_keyless, chk_null"
        in findings(keyless.check())["keys"]
    )
    keyless.close()
    cases: list[tuple[dict[str, Any], str, str, str]] = [
        ({"keyspace": "nowhere"}, ".*", "keyspace", "VTGate has no keyspace nowhere"),
        ({"shards": ("-40",)}, ".*", "keyspace", "doesn't have the shards of source.shards: -40"),
        ({}, "nothing", "tables", "no table is selected. check the patterns"),
    ]
    for options, tables, subject, reported in cases:
        wanting = source(vitess_server, tables=tables, **{"keyspace": "shop", **options})
        assert reported in findings(wanting.check())[subject]
        wanting.close()


def test_types_and_names_with_consequences_are_one_finding_each(vitess_server: VitessServer) -> None:
    for table in ("chk_odd1", "chk_odd2"):
        vitess_server.define(
            "lookup",
            f"CREATE TABLE {table} (id int PRIMARY KEY, j json, e enum('a'), _pos int, `a.b` int, a int)",
        )
    for mode, outcome in (("never", "needs a snapshot on request"), ("when_needed", "the same sync reads")):
        connector = Connector.from_dict(
            {
                "name": "odd",
                "source": {"type": "vitess", "keyspace": "lookup"},
                "tables": [r"lookup\.chk_odd."],
                "snapshot": {"mode": mode},
            }
        )
        with closing(source_plugin("vitess").source(connector, vitess_server.connection)) as source:
            found = {f.subject: f.message for f in source.check() if f.level != "ok"}
        assert set(found) == {
            "JSON",
            "ENUM and SET",
            "names",
            *(["added columns"] if mode == "never" else []),
        }
        changed = "_pos is _pos__2, a is a__2"
        assert found["names"].endswith(f"lookup.chk_odd1: {changed}; lookup.chk_odd2: {changed}")
        assert found["JSON"].startswith("chk_odd1, chk_odd2: ")
        assert found["ENUM and SET"].startswith("chk_odd1, chk_odd2: ")
        assert outcome in found["ENUM and SET"]


def test_unreachable_server_and_wrong_files_are_findings(
    vitess_server: VitessServer,
) -> None:
    dead = VitessSource(VitessOptions(keyspace="shop"), {"host": "127.0.0.1", "port": 1}, Selection())
    assert "UNAVAILABLE" in findings(dead.check())["connection"]
    wrong = VitessSource(
        VitessOptions(keyspace="shop"),
        {**vitess_server.connection, "extra": {"tls_ca_file": "/none"}},
        Selection(),
    )
    assert "/none can't be read" in findings(wrong.check())["connection"]


@pytest.mark.covers("VIT-SCO-07")
def test_tablet_type_selects_the_server_of_each_shard(vitess_server: VitessServer) -> None:
    """vtcombo's log names the tablet that each stream reads."""
    with vitess_server.client() as client:
        tablets = [t for t in list_tablets(client, "shop", 10) if t.shard in ("-80", "80-")]
    for kind in ("PRIMARY", "REPLICA", "RDONLY"):
        before = len(vitess_server.log.read_text())
        capture = source(vitess_server, tablet_type=kind)
        capture.head()
        capture.close()
        log = vitess_server.log.read_text()[before:]
        read = set(re.findall(r"Starting to vstream from (\S+?),", log))
        assert read == {t.alias for t in tablets if t.type == kind}
    with pytest.raises(ConfigurationError, match="tablet_type"):
        Connector.from_dict(
            {"name": "s", "source": {"type": "vitess", "keyspace": "s", "tablet_type": "SPARE"}}
        )


@pytest.mark.covers("VIT-SCO-21")
def test_cells_keep_the_reader_in_its_own(vitess_server: VitessServer) -> None:
    chosen = VitessStream(cells=("test",), cell_preference="onlyspecified", tablet_order="any")
    capture = source(vitess_server, stream=chosen)
    assert findings(capture.check()) == {}
    capture.close()
    elsewhere = source(vitess_server, stream=VitessStream(cells=("moon",)))
    assert "no tablet of the keyspace is in moon" in findings(elsewhere.check())["cells"]
    elsewhere.close()


def test_an_offset_near_the_end_of_the_binlog_retention_is_reported(vitess_server: VitessServer) -> None:
    vitess_server.define("shop", "CREATE TABLE chk_old (id bigint PRIMARY KEY)", shard_by={"chk_old": "id"})
    capture = source(vitess_server, tables=r"shop\.chk_old")
    kept = vitess_server.mysqld("SELECT @@binlog_expire_logs_seconds").strip()
    try:
        before = capture.head()
        with vitess_server.connect("shop") as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO chk_old (id) VALUES (1), (2), (3)")
        assert "stored offset" not in findings(capture.check(before))
        vitess_server.mysqld("SET GLOBAL binlog_expire_logs_seconds = 4")
        time.sleep(4)
        reported = findings(capture.check(before))["stored offset"]
    finally:
        vitess_server.mysqld(f"SET GLOBAL binlog_expire_logs_seconds = {kept}")
        capture.close()
    assert re.search(
        r"the changes after it are \d+ s old, and binlogs are retained for 4 s\. run the capture now",
        reported,
    )
