"""``airflow cdc migrate plan``: the report on a connector, and the generated declaration."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.cli.migrate import plan
from airflow_cdc_provider.connector import load_connector
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.migration.debezium.review import review
from airflow_cdc_provider.properties_file import parse_properties
from airflow_cdc_provider.sources.debezium.options import DebeziumOptions

MONGODB = r"""
connector.class=io.debezium.connector.mongodb.MongoDbConnector
topic.prefix=store
mongodb.connection.string=mongodb://db1:27017/?replicaSet=rs0
mongodb.password=dbz-secret
collection.include.list=store\\.orders
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
post.processors=
max.queue.size=8192
snapshot.mode=never
"""
MONGODB_OFFSETS = {
    "offsets": [
        {
            "partition": {"server_id": "store"},
            "offset": {"sec": 1795247392, "ord": 3, "resume_token": "8269A1C7E0000000032B0229296E04"},
        }
    ]
}
VITESS = """
connector.class=io.debezium.connector.vitess.VitessConnector
topic.prefix=commerce
vitess.keyspace=shop
vitess.shard=-80,80-
vitess.vtgate.host=vtgate
vitess.vtgate.user=dbz
vitess.vtgate.password=dbz-secret
provide.transaction.metadata=true
"""
SETS = {
    "-80": "MySQL56/11111111-1111-1111-1111-111111111111:1-9",
    "80-": "MySQL56/22222222-2222-2222-2222-222222222222:1-3",
}
VGTID = [{"keyspace": "shop", "shard": shard, "gtid": gtid} for shard, gtid in SETS.items()]
VITESS_OFFSETS = {"offsets": [{"partition": {"server": "commerce"}, "offset": {"vgtid": json.dumps(VGTID)}}]}
CASSANDRA = """
cassandra.hosts=db1
cassandra.port=9042
cassandra.password=dbz-secret
kafka.topic.prefix=nodes
topic.prefix=nodes
commit.log.relocation.dir=/var/relocation
offset.backing.store.dir=/var/offsets
snapshot.mode=never
"""
SCYLLA = """
connector.class=com.scylladb.cdc.debezium.connector.ScyllaConnector
topic.prefix=metrics
scylla.cluster.ip.addresses=db1:9042
scylla.user=dbz
scylla.password=dbz-secret
scylla.table.names=ks.readings
tasks.max=4
"""


@dataclass(frozen=True)
class Output:
    """Output and exit code of a command."""

    out: str
    err: str
    code: int


def run(
    folder: Path, properties: str, capsys: pytest.CaptureFixture[str], offsets: Any = None, **more: Any
) -> Output:
    """Plan the migration of a connector."""
    (folder / "connector.properties").write_text(properties)
    values: dict[str, Any] = {
        "connector": str(folder / "connector.properties"),
        "offsets": "",
        "host_id": "",
        "conn_id": "source_shop",
        "kafka_conn_id": "kafka_shop",
        "registry_conn_id": "",
        "output": "",
        "skip_unsupported": False,
        "allow_offset_invalidation": False,
    }
    if offsets is not None:
        (folder / "offsets").write_text(offsets if isinstance(offsets, str) else json.dumps(offsets))
        values["offsets"] = str(folder / "offsets")
    code = 0
    try:
        plan(Namespace(**{**values, **more}))
    except SystemExit as ended:
        code = int(str(ended.code))
    shown = capsys.readouterr()
    assert "dbz-secret" not in shown.out + shown.err
    return Output(shown.out, shown.err, code)


def section(output: Output, title: str) -> list[str]:
    """Return the lines below a title."""
    (part,) = [one for one in output.out.split("\n\n") if one.startswith(title)]
    return [line.strip() for line in part.splitlines()[1:]]


def test_mongodbs_connector_is_reviewed_by_property_and_starts_at_its_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "store.yaml"
    printed = run(tmp_path, MONGODB, capsys, MONGODB_OFFSETS, output=str(file))
    lines = section(printed, "Imported properties")
    taken = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert taken["topic.prefix"] == "publish.topic_prefix"
    assert taken["collection.include.list"] == "tables"
    assert taken["post.processors"] == "accepted: it is the behavior here"
    left = {line.split()[0] for line in section(printed, "Ignored properties")}
    assert {"mongodb.connection.string", "mongodb.password"} <= left
    assert "Unsupported properties" not in printed.out
    assert "topics keep their names: store.<database>.<collection>" in printed.out
    start = section(printed, "Start position")
    assert json.loads(start[0])["stream"]["t"] == 1795247392
    assert len(start) == 1, "with snapshot.mode never no row comes twice"
    assert any(f"offsets import --connector {file}" in line for line in section(printed, "Next steps"))

    written = load_connector(str(file))
    assert (written.source.conn_id, written.publish.kafka.connection) == ("source_shop", "kafka_shop")
    assert written == load_connector(str(file))
    assert written.tables == (r"(?i:store\.orders)",)
    failed = run(tmp_path, MONGODB, capsys, output=str(file))
    assert failed.code == 1
    assert "can't be written: found File exists" in failed.err


def test_vitess_connector_keeps_its_positions_shard_by_shard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = run(tmp_path, VITESS, capsys, VITESS_OFFSETS)
    start = section(printed, "Start position")
    assert set(json.loads(start[0])) == {"shop/-80", "shop/80-"}
    assert "publish.skipped_operations: [r]" in start[-1], "rows of the snapshot are known to consumers"
    assert "transaction topic: commerce.transaction" in printed.out
    assert "--output FILE.yaml" in section(printed, "Next steps")[0]


def test_cassandras_connector_start_with_the_oldest_segment_of_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = "shop.orders=CommitLog-7-1795247392880.log\\:307939\n"
    printed = run(tmp_path, CASSANDRA, capsys, offsets, host_id="host-1")
    start = section(printed, "Start position")
    assert json.loads(start[0])["host-1"]["floor"] == 1795247392879
    assert "segment 1795247392880: changes in it are emitted again" in start[1]
    assert "--host-id host-1" in "".join(section(printed, "Next steps"))
    printed = run(tmp_path, CASSANDRA, capsys, offsets)
    assert "does not name its node" in section(printed, "Start position")[0]


def test_scyllas_connector_is_reviewed_and_its_position_needs_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partition = {"keyspace_name": "ks", "table_name": "readings", "vnode_id": "0", "generation_start": "1"}
    bounds = dict.fromkeys(("window_start", "window_end"), "5a4b2c00-c8a0-11f0-8080-808080808080")
    offsets = {"offsets": [{"partition": partition, "offset": bounds}]}
    printed = run(tmp_path, SCYLLA, capsys, offsets)
    assert "topics keep their names: metrics.<keyspace>.<table>" in printed.out
    assert section(printed, "Start position")[0].startswith("unknown: there is no connection source_shop")
    assert section(run(tmp_path, SCYLLA, capsys), "Start position")[0].startswith("no offsets given")


def test_what_is_refused_is_reported_with_the_remedy_and_left_out_on_demand_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "store.yaml"
    odd = MONGODB + "post.processors=reselector\nfield.exclude.list=store.orders.card\nmax.batch.sise=1\n"
    failed = run(tmp_path, odd, capsys, output=str(file))
    assert failed.code == 1
    assert "no declaration is written: unsupported properties post.processors, " in failed.err
    assert not file.exists()
    printed = run(tmp_path, odd, capsys, output=str(file), skip_unsupported=True)
    refused = section(printed, "Unsupported properties")
    assert refused[0].startswith("post.processors")
    assert "Post processors are Java classes" in refused[0]
    assert any("Did you mean max.batch.size?" in line for line in refused)
    assert "# Unsupported and left out: post.processors" in file.read_text()
    assert load_connector(str(file)).topic_prefix == "store"


def test_files_of_others_are_distinguished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = run(tmp_path, "topicPrefix=events-\ncdcWorkingDir=/var/cdc\n", capsys)
    assert failed.code == 1
    assert "a configuration of DataStax's agent or connector" in failed.err
    with pytest.raises(ConfigurationError, match=r"connector\.class: expected"):
        review({"connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector"})
    server = "debezium.source.connector.class=io.debezium.connector.mongodb.MongoDbConnector\n"
    assert "properties of Debezium Server" in run(tmp_path, server, capsys).err
    for text in ('{"name": ', '{"name": "a", "config": {"tasks.max": [1]}}', '{"a": {"info": {}}}', "{}[]"):
        assert "connector configuration" in run(tmp_path, text, capsys).err


def test_kafka_connects_json_is_read_as_the_same_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = parse_properties(MONGODB)
    settings["max.queue.size"] = "8192"
    reported = run(tmp_path, MONGODB, capsys)
    nested: dict[str, Any] = {"name": None, "config": {**settings, "max.queue.size": 8192}, "tasks": []}
    for given in (settings, nested):
        assert run(tmp_path, json.dumps(given), capsys) == reported
    named = {"name": "store-connector", "config": settings}
    assert "name" in section(run(tmp_path, json.dumps(named), capsys), "Imported properties")[0]


MYSQL = {
    "connector.class": "io.debezium.connector.mysql.MySqlConnector",
    "database.password": "dbz-secret",
    "topic.prefix": "db.server",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "io.confluent.connect.avro.AvroConverter",
    "value.converter.schema.registry.url": "http://registry:8081",
    "transforms": "rows",
    "transforms.rows.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.rows.drop.tombstones": "true",
}


def test_connectors_without_a_source_of_their_own_stay_and_their_topics_become_mirrors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "shop.yaml"
    printed = run(tmp_path, json.dumps({"name": "shop", "config": MYSQL}), capsys, "{}", output=str(file))
    assert "database.password" in "".join(section(printed, "Ignored properties"))
    assert "the connector keeps running" in printed.out
    assert "deletes are dropped, so rows stay in mirrors" in printed.out
    assert "skips truncates" in printed.out
    assert section(printed, "Next steps") == [f"airflow cdc check --connector {file}"]
    written = load_connector(str(file))
    assert written.name == "shop"
    source = written.source
    assert isinstance(source, DebeziumOptions)
    assert (source.conn_id, source.topics, source.envelope) == (
        "kafka_shop",
        (r"db\.server\..*",),
        "unwrapped",
    )
    assert (source.key_converter, source.value_converter) == ("string", "avro")
    assert source.registry.url == "http://registry:8081"


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"transforms.rows.type": "org.apache.kafka.connect.transforms.RegexRouter"}, "renames topics"),
        ({"transforms.rows.type": "io.debezium.transforms.outbox.EventRouter"}, "may not be rows"),
        ({"transforms.rows.predicate": "p"}, "need separate connectors"),
        (
            {"value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter"},
            "Supported are JsonConverter",
        ),
        ({"value.converter.schema.registry.url": "http://u:dbz-secret@registry"}, "Credentials belong"),
        ({"value.converter.schema.registry.url": ""}, "address of the schema registry"),
        ({"topic.delimiter": "_"}, "source.tables_from: source"),
    ],
)
def test_what_keeps_topics_from_being_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: dict[str, str], reason: str
) -> None:
    printed = run(tmp_path, json.dumps({**MYSQL, **more}), capsys)
    assert reason in "".join(section(printed, "Unsupported properties"))


def test_each_transform_is_judged_by_itself_and_leaves_nothing_if_it_cannot_be_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = (
        MONGODB
        + """
transforms=rows,groovy,route
transforms.rows.type=io.debezium.connector.mongodb.transforms.ExtractNewDocumentState
transforms.rows.add.fields=op
transforms.rows.no.such.setting=1
transforms.groovy.type=io.debezium.transforms.Filter
transforms.groovy.condition=value.op == 'u'
transforms.route.type=org.apache.kafka.connect.transforms.RegexRouter
transforms.route.regex=a
transforms.route.replacement=b
transforms.idle.type=org.apache.kafka.connect.transforms.RegexRouter
"""
    )
    file = tmp_path / "store.yaml"
    printed = run(tmp_path, chain, capsys, output=str(file), skip_unsupported=True)
    (refused,) = section(printed, "Unsupported properties")
    assert "no.such.setting" in refused
    assert "Groovy and other scripts are not supported" in refused
    left = dict(line.split(maxsplit=1) for line in section(printed, "Ignored properties"))
    assert left["transforms.groovy.condition"] == "its transform is not supported"
    assert left["transforms.rows.add.fields"] == "its transform is not supported"
    assert left["transforms.idle.type"].startswith("it is not listed in transforms")
    publish = load_connector(str(file)).publish
    assert not publish.unwrap.enabled
    assert len(publish.transforms) == 1


@pytest.mark.parametrize(
    ("settings", "deletes"),
    [
        ("delete.handling.mode=rewrite", "rewrite"),
        ("drop.tombstones=false", "tombstone"),
        ("drop.tombstones=false,delete.handling.mode=rewrite", "rewrite-with-tombstone"),
        ("delete.handling.mode=none", "delete-to-tombstone"),
        ("drop.tombstones=true,delete.tombstone.handling.mode=rewrite", "rewrite"),
        ("drop.tombstones=false,delete.handling.mode=none", None),
    ],
)
def test_what_transforms_did_with_deletes_before_debezium_3_is_followed(
    settings: str, deletes: str | None
) -> None:
    own = dict(one.split("=") for one in settings.split(","))
    for connector, kind in (
        (MONGODB, "io.debezium.connector.mongodb.transforms.ExtractNewDocumentState"),
        (VITESS, "io.debezium.transforms.ExtractNewRecordState"),
        (SCYLLA, "com.scylladb.cdc.debezium.connector.transforms.ScyllaExtractNewRecordState"),
    ):
        properties = {**parse_properties(connector), "transforms": "rows", "transforms.rows.type": kind}
        found = review({**properties, **{f"transforms.rows.{name}": value for name, value in own.items()}})
        publish = found.imported.connector.publish
        shown = publish.unwrap if publish.unwrap.enabled else next(iter(publish.transforms), None)
        assert getattr(shown, "deletes", None) == deletes
        assert ("transforms" in [one.name for one in found.of("unsupported")]) == (deletes is None)


def test_values_that_kafka_connect_resolves_must_be_replaced() -> None:
    secrets = {"mongodb.password": "${file:/etc/secrets:password}", "config.providers": "file"}
    found = review({**parse_properties(MONGODB), **secrets, "collection.include.list": "${env:TABLES}"})
    assert {one.name for one in found.of("unsupported")} == {"collection.include.list"}
    assert set(secrets) <= {one.name for one in found.of("ignored")}
