"""The servers that all other integration tests stand on."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.tasks.spark_process import search_path
from server_kit import (
    CassandraServer,
    KafkaServer,
    MongoServer,
    VitessServer,
    create_keyspace,
    quick_spark,
)
from server_kit.cache import cache_folder, cached, require_space
from server_kit.mongodb import mongod
from server_kit.ports import free_port
from server_kit.process import ServerProcess
from server_kit.programs import find_java, find_program, run_program

if TYPE_CHECKING:
    from cassandra.cluster import Session
    from pymongo import MongoClient


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "airflow-cdc-provider"


def _fill_slowly(folder: Path) -> None:
    with (folder.parent / "builds").open("a") as file:
        file.write("x")
    time.sleep(0.3)
    (folder / "content").write_text("whole")


def _use_cache(_: int) -> str:
    return (cached("thing", "1", _fill_slowly, "a thing") / "content").read_text()


def test_parallel_users_of_the_cache_build_once(own_cache: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_use_cache, range(4)) == ["whole"] * 4
    assert (own_cache / "thing" / "builds").read_text() == "x"


def test_failed_download_leaves_nothing_and_can_be_repeated(own_cache: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise ConfigurationError("cut off")

    with pytest.raises(ConfigurationError, match="cut off"):
        cached("thing", "1", fail, "a thing")
    assert not (own_cache / "thing" / "1").exists()
    assert (cached("thing", "1", _fill_slowly, "a thing") / "content").exists()
    assert not list((own_cache / "thing" / "1").glob("half"))


def test_relative_cache_home_is_ignored_as_its_specification_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "airflow-cdc-provider"


def test_full_disk_is_one_clear_error(own_cache: Path, tmp_path: Path) -> None:
    def fill(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(ConfigurationError, match=r"No space left on device.*XDG_CACHE_HOME"):
        cached("thing", "1", fill, "a thing")
    with pytest.raises(ConfigurationError, match=r"too full for Cassandra: expected .* MiB free"):
        require_space(tmp_path, 1 << 60, "Cassandra")
    with pytest.raises(ConfigurationError, match="the disk is full"):
        run_program(["sh", "-c", "echo No space left on device >&2; exit 1"], "downloading")


def test_missing_java_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="apt-get install openjdk-17-jre-headless"):
        find_java()
    with pytest.raises(ConfigurationError, match="apt-get install maven"):
        find_program("mvn", "maven")


def test_wrong_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="expected Java 17 to 21, found 11"):
        find_java()


def test_taken_port_is_one_clear_error(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        taken = listener.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"port {taken} on 127.0.0.1 is taken"):
            MongoServer(tmp_path, port=taken).start()


def test_failed_start_shows_the_end_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = ServerProcess("toy", log)
    process.start(["sh", "-c", f"echo broken setting >> {log}; exit 3"], tmp_path / "out")
    with pytest.raises(ConfigurationError, match=r"(?s)exit code 3.*broken setting"):
        process.wait_until(lambda: False, "nothing", 10)


def test_slow_start_is_ended_after_its_time(tmp_path: Path) -> None:
    process = ServerProcess("toy", tmp_path / "log")
    process.start(["sleep", "60"], tmp_path / "out")
    with pytest.raises(ConfigurationError, match="no answer after"):
        process.wait_until(lambda: False, "answer", 0.1)
    assert not process.running


def _start_server_and_die(folder: Path) -> None:
    process = ServerProcess("toy", folder / "log")
    process.start(["sleep", "60"], folder / "out")
    (folder / "pid").write_text(str(process.pid))
    os._exit(0)


def test_server_ends_with_a_killed_starter(tmp_path: Path) -> None:
    starter = multiprocessing.get_context("fork").Process(target=_start_server_and_die, args=(tmp_path,))
    starter.start()
    starter.join()
    status = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    deadline = time.monotonic() + 5
    while status.exists() and status.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.integration
def test_cassandra_segment_is_complete_after_a_roll(
    cassandra_server: CassandraServer, cassandra_session: Session
) -> None:
    create_keyspace(cassandra_session, "kit")
    cassandra_session.execute("CREATE TABLE kit.rolled (a int PRIMARY KEY) WITH cdc = true")
    cassandra_session.execute("INSERT INTO kit.rolled (a) VALUES (1)")
    cassandra_server.roll_segment(cassandra_session)
    assert any(path.read_text().endswith("COMPLETED") for path in cassandra_server.cdc_raw.glob("*_cdc.idx"))
    assert len(cassandra_server.host_id) == 36
    assert "Native Transport active: true" in cassandra_server.nodetool("info")


@pytest.mark.long
@pytest.mark.integration
def test_killed_cassandra_starts_again_with_its_rows() -> None:
    with CassandraServer(address="127.0.0.3", storage_compatibility_mode="NONE", heap_mib=384) as server:
        session = server.connect()
        create_keyspace(session, "kit")
        session.execute("CREATE TABLE kit.kept (a int PRIMARY KEY) WITH cdc = true")
        session.execute("INSERT INTO kit.kept (a) VALUES (1)")
        time.sleep(0.5)  # past commitlog_sync_period: what was synced must survive
        server.kill()
        assert not server.running
        server.start()
        assert [row.a for row in server.connect().execute("SELECT a FROM kit.kept")] == [1]
        assert list(server.cdc_raw.glob("CommitLog-8-*.log"))
        folder = server.folder
    assert not folder.exists()


@pytest.mark.integration
def test_mongodb_takes_transactions_and_change_streams(mongo_client: MongoClient) -> None:
    collection = mongo_client.kit.orders
    with collection.watch(max_await_time_ms=2000) as stream:
        with mongo_client.start_session() as session, session.start_transaction():
            collection.insert_one({"_id": 1}, session=session)
        assert next(stream)["documentKey"] == {"_id": 1}


@pytest.mark.integration
def test_killed_mongodb_starts_again_with_its_documents() -> None:
    with MongoServer(oplog_size_mib=16) as server:
        server.client().kit.kept.insert_one({"_id": 1})
        server.kill()
        server.start()
        assert server.client().kit.kept.find_one() == {"_id": 1}


@pytest.mark.integration
def test_mongodb_with_auth_refuses_strangers() -> None:
    from pymongo import MongoClient
    from pymongo.errors import OperationFailure

    with MongoServer(auth=True) as server:
        server.client().kit.kept.insert_one({"_id": 1})
        server.restart()
        assert server.client().kit.kept.count_documents({}) == 1
        with (
            MongoClient(server.host, server.port, directConnection=True) as stranger,
            pytest.raises(OperationFailure, match="requires authentication"),
        ):
            stranger.kit.kept.find_one()


@pytest.mark.integration
def test_mongodb_without_openssl_1_falls_back(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def unreachable() -> Path:
        raise ConfigurationError("apt knows no Debian security suite")

    monkeypatch.setattr("server_kit.mongodb._openssl_1", unreachable)
    version, binary, environment = mongod()
    assert (version, environment) == ("6.0.5", {})
    assert "6.0.5 serves instead" in capfd.readouterr().err
    with pytest.raises(ConfigurationError, match="security suite"):
        mongod("6.0.27")
    assert "db version v6.0.5" in run_program([str(binary), "--version"], "asking mongod")


@pytest.mark.integration
def test_vitess_spreads_rows_over_its_shards(vitess_server: VitessServer) -> None:
    vitess_server.define(
        "shop", "CREATE TABLE kit_spread (id bigint PRIMARY KEY, note text)", shard_by={"kit_spread": "id"}
    )
    cursor = vitess_server.connect("shop").cursor()
    cursor.execute("INSERT INTO kit_spread VALUES (1, 'a'), (4, NULL)")  # without columns: VTGate knows them
    client = vitess_server.client()
    assert client.execute("SELECT * FROM kit_spread", "shop:-80").rows == [[b"1", b"a"]]
    assert client.execute("SELECT * FROM kit_spread", "shop:80-@replica").rows == [[b"4", None]]
    vitess_server.define("shop", "ALTER TABLE kit_spread DROP note")
    cursor.execute("INSERT INTO kit_spread VALUES (2)")


@pytest.mark.long
@pytest.mark.integration
def test_stopped_and_killed_vitess_starts_again_with_its_rows() -> None:
    with VitessServer(auth=True) as server:
        server.define("shop", "CREATE TABLE kept (id bigint PRIMARY KEY)", shard_by={"kept": "id"})
        for row, end in ((1, server.stop), (4, server.kill)):
            mysqld = server.mysqld_pid
            with server.connect("shop") as connection, connection.cursor() as cursor:
                cursor.execute(f"INSERT INTO kept (id) VALUES ({row})")
            end()
            assert mysqld is not None
            assert server.mysqld_pid is None
            server.start()
        assert sorted(server.client().execute("SELECT id FROM kept", "shop").rows) == [[b"1"], [b"4"]]
        folder = server.folder
    assert not folder.exists()


def test_too_long_a_path_for_sockets_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"too long a path for MySQL's socket: expected mysql\.sock in"
    ):
        VitessServer(tmp_path / ("x" * 100)).start()


@pytest.mark.integration
def test_kafka_shows_readers_only_what_was_committed(kafka_server: KafkaServer) -> None:
    from confluent_kafka import Producer

    kafka_server.create_topic("kit", 2, max_message_bytes=2000)
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap, "transactional.id": "kit"})
    producer.init_transactions(30)
    for value, end in ((b"kept", producer.commit_transaction), (b"gone", producer.abort_transaction)):
        producer.begin_transaction()
        producer.produce("kit", value, b"key")
        producer.flush()
        end()
    assert [record.value() for record in kafka_server.read("kit")] == [b"kept"]
    seen = kafka_server.read("kit", isolation="read_uncommitted")
    assert [record.value() for record in seen] == [b"kept", b"gone"]


@pytest.mark.long
@pytest.mark.integration
def test_killed_kafka_starts_again_with_its_records_and_asks_for_a_login() -> None:
    from confluent_kafka import KafkaException, Producer
    from confluent_kafka.admin import AdminClient

    with KafkaServer(secured=True) as server:
        server.create_topic("kept")
        producer = Producer(server.secured_config)
        producer.produce("kept", b"value")
        assert producer.flush(30) == 0
        server.kill()
        assert not server.running
        server.start()
        assert [record.value() for record in server.read("kept")] == [b"value"]
        stranger = AdminClient({**server.secured_config, "sasl.password": "another", "log_level": 0})
        with pytest.raises(KafkaException):
            stranger.list_topics(timeout=3)
        folder = server.folder
    assert not folder.exists()


def test_free_ports_lie_below_the_kernels_own_range() -> None:
    assert all(20_000 <= free_port() < 32_000 for _ in range(5))


def test_settings_are_given_in_each_releases_own_words(tmp_path: Path) -> None:
    def settings(version: str) -> dict[str, object]:
        return CassandraServer(tmp_path, version=version).settings

    assert settings("5.0.9")["commitlog_segment_size"] == "1MiB"
    assert "storage_compatibility_mode" in settings("5.0.9")
    assert settings("4.1.10")["commitlog_sync_period"] == "100ms"
    assert "storage_compatibility_mode" not in settings("4.1.10")
    of_4_0, of_3 = settings("4.0.19"), settings("3.11.19")
    assert of_4_0["cdc_total_space_in_mb"] == of_3["cdc_total_space_in_mb"] == 512
    assert of_4_0["enable_materialized_views"] is True
    assert of_3["start_native_transport"] is True


@pytest.mark.integration
def test_spark_takes_its_classes_from_the_archive(tmp_path: Path) -> None:
    loaded = tmp_path / "loaded"
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    environment |= quick_spark()
    environment["SPARK_SUBMIT_OPTS"] += f" -Xlog:class+load:file={loaded}"
    environment["PATH"] = search_path()
    subprocess.run(["spark-submit", "--version"], env=environment, check=True, capture_output=True)
    source = re.search(r"org\.apache\.spark\.deploy\.SparkSubmit source: (.*)", loaded.read_text())
    assert source is not None
    assert source[1].startswith("shared objects file")
