"""Profiles of Debezium that choose what is read: by stages, scope, snapshot mode or signals.

The server's part is applied to the recording here; the rest is compared byte for byte.
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bson
import pyarrow as pa
import pytest
from bson import json_util
from bson.raw_bson import DEFAULT_RAW_BSON_OPTIONS, RawBSONDocument

from airflow_cdc_provider.connector import Connector
from airflow_cdc_provider.events.encoder import encode, text_of, to_lines
from airflow_cdc_provider.events.headers import context_headers
from airflow_cdc_provider.migration.debezium.properties import from_debezium
from airflow_cdc_provider.sources.encoding import converters_of, envelope_options
from airflow_cdc_provider.sources.mongodb.events.decode import decode_snapshot
from airflow_cdc_provider.sources.mongodb.events.envelope import build
from airflow_cdc_provider.sources.recordings import Recording
from tests.unit.sources.mongodb.events.mongodb_recordings import (
    FIXTURES,
    NOW_NS,
    PROFILES,
    debezium_records,
    printed,
    raced_with_the_next_write,
    recording,
    without_clock,
)


def connector_of(profile: str, *without: str) -> Connector:
    properties = {n: v for n, v in PROFILES[profile].items() if not n.startswith(without or ("\0",))}
    return from_debezium({"topic.prefix": profile, **properties}).connector


def keep(file: Path, selected: Callable[[RawBSONDocument], bool]) -> None:
    """Leave out documents of a recording, as the server would have."""
    with gzip.open(file) as stream:
        documents = list(bson.decode_file_iter(stream, DEFAULT_RAW_BSON_OPTIONS))
    with gzip.open(file, "wb") as stream:
        stream.write(b"".join(bytes(document.raw) for document in documents if selected(document)))


def same(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert (our["topic"], our["key"]) == (their["topic"], their["key"])
        assert [h for h in our["headers"] if not h[0].endswith("runId")] == their["headers"]
        if not raced_with_the_next_write(our):
            assert without_clock(our["value"]) == without_clock(their["value"])


def test_initial_only_gives_the_snapshot_and_nothing_else(tmp_path: Path) -> None:
    same(
        printed(connector_of("initial_only"), recording(tmp_path, "lookup_pre")),
        debezium_records("initial_only"),
    )


def test_stages_before_the_filter_see_all_events(tmp_path: Path) -> None:
    source = recording(tmp_path, "lookup_pre")
    stages = json.loads(PROFILES["pipeline"]["cursor.pipeline"])
    assert [stage["$match"] for stage in stages] == [
        {"operationType": {"$in": ["insert", "delete"]}},
        {"ns.coll": "orders"},
    ]
    keep(
        tmp_path / "lookup_pre.bson.gz",
        lambda event: event["operationType"] in ("insert", "delete") and event["ns"]["coll"] == "orders",
    )
    connector = connector_of("pipeline")
    assert connector.to_dict()["source"]["stream"]["pipeline_order"] == "user_first"
    same(printed(connector, source), debezium_records("pipeline"))


def test_a_snapshot_of_chosen_documents_of_chosen_collections(tmp_path: Path) -> None:
    source = recording(tmp_path, "lookup_pre")
    connector = connector_of("snapfilter")
    assert connector.snapshot.filters == {"shop.plain": '{"number": {"$gt": 2}}'}
    keep(tmp_path / "snapshot.shop.plain.bson.gz", lambda document: document["number"] > 2)
    same(
        printed(connector_of("snapfilter", "snapshot.collection.filter"), source),
        debezium_records("snapfilter"),
    )


def test_a_collection_of_its_own_scope_resumes_after_its_drop_where_debezium_ends(tmp_path: Path) -> None:
    ours = printed(connector_of("scope_coll"), recording(tmp_path, "lookup_pre"))
    theirs = debezium_records("scope_coll")
    same(ours[: len(theirs)], theirs)
    published = [(json.loads(r["value"])["op"], json.loads(r["key"])["id"]) for r in ours if r["value"]]
    assert published == [("c", "1"), ("c", "1"), ("c", "2"), ("c", "3")]


def test_reads_of_several_threads_have_the_same_positions_as_those_of_one(tmp_path: Path) -> None:
    # Debezium's second and later threads have no position: their reads say ord 0, at 0 ms.
    ours = printed(connector_of("threads"), recording(tmp_path, "lookup_pre"))
    theirs = debezium_records("threads")

    def by_collection(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        reads = [r for r in records if r["value"] and '"op":"r"' in r["value"]]
        marked = [
            {
                **r,
                "value": r["value"]
                .replace('"snapshot":"last"', '"snapshot":"true"')
                .replace('"ord":0', '"ord":-1'),
            }
            for r in reads
        ]
        return [*sorted(marked, key=lambda r: str(r["topic"])), *records[len(reads) :]]

    assert {json.loads(r["value"])["source"]["ord"] for r in ours[:13]} == {-1}
    same(by_collection(ours), by_collection(theirs))


SIGNALS = {"sig_insins": "signals", "sig_insdel": "signals_b", "sig_block": "signals_c"}


def of_signals(profile: str) -> Connector:
    tables = [rf"shop\.(\w+_)?{SIGNALS[profile]}"]
    declared = {"name": profile, "source": {"type": "mongodb"}, "tables": tables}
    return Connector.from_dict({**declared, "publish": {"topic_prefix": profile}})


@pytest.mark.parametrize("profile", SIGNALS)
def test_signals_and_marks_are_events_of_their_collection(profile: str, tmp_path: Path) -> None:
    shutil.copy(FIXTURES / "raw" / "signals.bson.gz", tmp_path)
    ours = printed(of_signals(profile), Recording(tmp_path, "", NOW_NS))
    theirs = [r for r in debezium_records(profile) if not r["value"] or '"op":"r"' not in r["value"]]
    for record in theirs:  # the raw stream was recorded without looking documents up
        if record["value"] and '"op":"u"' in record["value"]:
            record["value"] = re.sub(r'"after":"(\\.|[^"\\])*"', '"after":null', record["value"])
    same(ours, theirs)


@pytest.mark.parametrize("profile", SIGNALS)
def test_reads_requested_by_signals_are_marked(profile: str) -> None:
    theirs = [r for r in debezium_records(profile) if r["value"] and '"op":"r"' in r["value"]]
    assert theirs
    connector = of_signals(profile)
    headers = context_headers(profile, "0", "mongodb", "")
    for their in theirs:
        value = json.loads(their["value"])
        collection = value["source"]["collection"]
        assert value["source"]["snapshot"] in (
            ["incremental"] if profile != "sig_block" else ["true", "last"]
        )
        # Debezium's text of these documents is valid for json_util: they hold numbers, texts and their ids.
        document = bson.encode(json_util.loads(value["after"]))
        events = decode_snapshot(pa.array([document], pa.binary()), "shop", collection).events
        envelope = build(
            events,
            envelope_options(connector, NOW_NS),
            last_of_snapshot=value["source"]["snapshot"] == "last",
            incremental=profile != "sig_block",
        )
        line = to_lines(encode(envelope, converters_of(connector)), headers)
        our = json.loads(text_of(line))
        pattern = r'("ord":)-?\d+'  # the position of the stream at the time of the signal
        for record in (our, their):
            record["value"] = re.sub(pattern, r"\g<1>0", record["value"])
        same([our], [their])
