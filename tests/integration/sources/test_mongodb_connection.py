"""Connections to real servers: keystores, credentials of a class, SRV records, retries."""

from __future__ import annotations

import datetime
import ipaddress
import logging
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import bson
import dns.flags
import dns.message
import dns.resolver
import dns.rrset
import pytest
from pymongo import timeout

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.sources.contract import ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.mongodb.connection import (
    ConnectionValues,
    await_cluster_time,
    pinned_client,
)
from airflow_cdc_provider.sources.mongodb.driver.raw_cursor import RawCursor
from airflow_cdc_provider.sources.mongodb.options import MongodbAdvanced, MongodbOptions
from airflow_cdc_provider.sources.mongodb.selection import Selection
from airflow_cdc_provider.sources.mongodb.source import MongodbSource
from server_kit import MongoServer
from server_kit.ports import free_port

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.x509 import Certificate

pytestmark = pytest.mark.integration

WORD = "word-of-the-stores"
DOMAIN = "cluster.atlas.test"
"""Of the stand-in for a cloud's DNS."""


class Authority:
    """Makes certificates, and stores of them as keytool and openssl do.

    Args:
        folder: Where files go.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key, self.certificate = self._signed("the authority", None)
        (folder / "ca.pem").write_bytes(pem(self.certificate))

    def _signed(self, name: str, issuer: Certificate | None) -> tuple[rsa.RSAPrivateKey, Certificate]:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import rsa
        from cryptography.x509.oid import NameOID

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        subject = x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, name),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, name),
            ]
        )
        now = datetime.datetime.now(datetime.UTC)
        names = [x509.DNSName("localhost"), x509.DNSName(f"*.{DOMAIN}")]
        addresses = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer.subject if issuer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        )
        return key, built.sign(self._key if issuer else key, hashes.SHA256())

    def issue(self, name: str) -> None:
        """Write ``name.pem`` (key and certificate), ``name.p12`` and ``name.jks``."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.serialization import pkcs12

        key, certificate = self._signed(name, self.certificate)
        plain = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
        (self.folder / f"{name}.pem").write_bytes(plain + pem(certificate))
        word = form.BestAvailableEncryption(WORD.encode())
        packed = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, None, word)
        (self.folder / f"{name}.p12").write_bytes(packed)
        source = ["-srckeystore", str(self.folder / f"{name}.p12"), "-srcstorepass", WORD]
        target = ["-destkeystore", str(self.folder / f"{name}.jks"), "-deststorepass", WORD]
        keytool("-importkeystore", *source, *target, "-deststoretype", "JKS", "-destkeypass", WORD)

    def trust(self) -> None:
        """Write ``trust.p12``, ``trust.jks`` and ``trust.pem``."""
        (self.folder / "trust.pem").write_bytes(pem(self.certificate))
        for kind, name in (("p12", "PKCS12"), ("jks", "JKS")):
            store = ["-keystore", str(self.folder / f"trust.{kind}"), "-storepass", WORD, "-storetype", name]
            keytool("-importcert", "-noprompt", "-alias", "ca", "-file", str(self.folder / "ca.pem"), *store)


def pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    return certificate.public_bytes(form.Encoding.PEM)


def keytool(*arguments: str) -> None:
    reported = subprocess.run(["keytool", *arguments], capture_output=True, text=True, check=False)
    assert reported.returncode == 0, reported.stdout + reported.stderr


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    authority = Authority(folder)
    for name in ("server", "client"):
        authority.issue(name)
    authority.trust()
    return folder


@pytest.fixture(scope="module")
def demanding(stores: Path) -> Iterator[MongoServer]:
    """A server that requires TLS and a client certificate."""
    options = ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", str(stores / "server.pem")]
    with MongoServer(options=[*options, "--tlsCAFile", str(stores / "ca.pem")]) as server:
        with server.client() as plain:
            plain.admin.command("setParameter", 1, tlsMode="requireTLS")
        yield server


def source(values: Mapping[str, Any], **options: Any) -> MongodbSource:
    advanced = MongodbAdvanced(connect_timeout_seconds=3.0, connect_attempts=0)
    return MongodbSource(
        MongodbOptions(**{"advanced": advanced, **options}), values, Selection((r"shop\..*",))
    )


def capture_one(reading: MongodbSource, client: Any) -> list[Any]:
    """Read a collection in full and then one change, through all kinds of clients that a source makes."""
    client.shop.a.drop()
    client.shop.a.insert_one({"_id": "before"})
    start = reading.head()
    plan = reading.plan_snapshot("shop.a")
    batches = list(reading.snapshot_reader().read(plan.ranges, ReadMetrics()))
    client.shop.a.insert_one({"_id": "after"})
    batch_plan = reading.plan(start, reading.head(), ReadLimit())
    batches += list(reading.reader().read(batch_plan.partitions, ReadMetrics()))
    payloads = [bson.decode(row["payload"]) for batch in batches for row in batch.to_pylist()]
    return [p["documentKey"]["_id"] if "documentKey" in p else p["_id"] for p in payloads]


def secured(server: MongoServer, stores: Path, kind: str, **more: Any) -> dict[str, Any]:
    words = {} if kind == "pem" else {"ssl.keystore.password": WORD, "ssl.truststore.password": WORD}
    named = {"ssl.keystore": str(stores / f"client.{kind}"), "ssl.truststore": str(stores / f"trust.{kind}")}
    host = f"mongodb://{server.host}:{server.port}/?replicaSet=rs0&readPreference=nearest"
    return {"host": host, "extra": {**named, **words, **more}}


@pytest.mark.parametrize("kind", ["p12", "jks", "pem"])
@pytest.mark.covers("MDB-CONN-08", "MDB-CONN-09")
def test_keystores_of_all_kinds_log_in_and_verify_the_server(
    demanding: MongoServer, stores: Path, kind: str
) -> None:
    values = secured(demanding, stores, kind)
    reading = source(values)
    with ConnectionValues.read(values, 3.0).client() as client:
        assert capture_one(reading, client) == ["before", "after"]
    assert not [finding for finding in reading.check() if finding.level == "error"]
    reading.close()
    # They are this connection's alone: another one trusts nobody, or has no certificate to show.
    for name, error in (("ssl.keystore", TransientError), ("ssl.truststore", ConfigurationError)):
        less = {key: value for key, value in values["extra"].items() if not key.startswith(name)}
        with pytest.raises(error):
            source({**values, "extra": {**less, "tls": True}}).head()
    with pytest.raises(TransientError):
        source({"host": values["host"], "extra": {}}).head()


@pytest.mark.covers("MDB-CONN-08", "MDB-CONN-09")
def test_what_is_wrong_with_a_keystore_is_reported(
    demanding: MongoServer, stores: Path, tmp_path: Path
) -> None:
    garbage = tmp_path / "garbage.p12"
    garbage.write_bytes(b"not a store")
    for wrong, reported in (
        ({"ssl.keystore.password": "other"}, "can't be opened"),
        ({"ssl.truststore": str(tmp_path / "none.p12")}, "can't be read"),
        ({"ssl.keystore": str(garbage)}, "is not a keystore"),
        ({"ssl.keystore": str(stores / "trust.p12")}, "no private key"),
        ({"ssl.truststore.type": "BKS"}, "keytool -importkeystore"),
        ({"tlsCAFile": str(stores / "ca.pem")}, "are both set"),
        ({"ssl.truststore": ""}, "is set without ssl.truststore"),
    ):
        with pytest.raises(ConfigurationError, match=reported) as caught:
            source(secured(demanding, stores, "p12", **wrong)).head()
        assert WORD not in str(caught.value)


class StandInDns:
    """A DNS server with one SRV and one TXT record; it records the queries."""

    def __init__(self, target: str, port: int, options: str) -> None:
        self._answers = {
            ("SRV", f"_mongodb._tcp.{DOMAIN}."): f"0 0 {port} {target}.",
            ("TXT", f"{DOMAIN}."): f'"{options}"',
        }
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.requests: list[tuple[str, str]] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                data, who = self._socket.recvfrom(4096)
            except OSError:
                return
            query = dns.message.from_wire(data)
            question = query.question[0]
            kind, name = dns.rdatatype.to_text(question.rdtype), question.name.to_text()
            self.requests.append((kind, name))
            reply = dns.message.make_response(query)
            reply.flags |= dns.flags.AA
            if answer := self._answers.get((kind, name)):
                reply.answer.append(dns.rrset.from_text(name, 60, "IN", kind, answer))
            else:
                reply.set_rcode(dns.rcode.NXDOMAIN)
            self._socket.sendto(reply.to_wire(), who)

    def close(self) -> None:
        self._socket.close()


@contextmanager
def stand_in_dns(monkeypatch: pytest.MonkeyPatch, server: MongoServer) -> Iterator[StandInDns]:
    """Let names of the domain lead to a server on this machine, by a DNS server of the test's own."""
    names = StandInDns(f"node0.{DOMAIN}", server.port, "replicaSet=rs0")
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], names.port
    monkeypatch.setattr(dns.resolver, "default_resolver", resolver)
    real = socket.getaddrinfo

    def addresses(host: Any, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if str(host).endswith(DOMAIN) else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", addresses)
    try:
        yield names
    finally:
        names.close()


@pytest.mark.covers("MDB-TOP-07")
def test_a_cluster_behind_srv_records_that_takes_tls_alone_is_captured(
    demanding: MongoServer, stores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stand_in_dns(monkeypatch, demanding) as names:
        own = secured(demanding, stores, "p12")["extra"]
        values = {"host": DOMAIN, "extra": {**own, "srv": True, "readPreference": "nearest"}}
        reading = source(values)
        with ConnectionValues.read(values, 3.0).client() as client:
            assert client.options.replica_set_name == "rs0", "the TXT record says so"
            assert capture_one(reading, client) == ["before", "after"]
        assert not [finding for finding in reading.check() if finding.level == "error"]
        reading.close()
        assert ("SRV", f"_mongodb._tcp.{DOMAIN}.") in names.requests
        # SRV turns TLS on; without the authority nobody is trusted.
        with pytest.raises(ConfigurationError, match=r"certificate verify failed.*tlsCAFile"):
            source({"host": f"mongodb+srv://{DOMAIN}"}).head()


@pytest.mark.covers("MDB-CONN-01")
def test_a_connection_string_wins_over_all_other_fields() -> None:
    with MongoServer(auth=True) as server:
        string = (
            f"{server.uri}{'&' if '?' in server.uri else '?'}appName=of-the-string&readPreference=nearest"
        )
        others = {"host": "nowhere.invalid", "port": 1, "login": "nobody", "password": "wrong"}
        extra = {"secret_uri": string, "appName": "of-the-extra", "readPreference": "secondary"}

        with ConnectionValues.read({**others, "extra": extra}, 5).client() as client:
            (session,) = client.admin.aggregate(
                [{"$currentOp": {}}, {"$match": {"appName": {"$regex": "^of-the-"}, "active": True}}]
            )
            assert session["appName"] == "of-the-string"
            assert client.read_preference.name == "Nearest"
        assert source({**others, "extra": extra}).head()
        with pytest.raises(ConfigurationError, match="Authentication failed"):
            source({**others, "host": server.host, "port": server.port}).head()


class Vault:
    """Provides credentials like a vault: they change after a while."""

    requests: ClassVar[list[str]] = []
    current: ClassVar[dict[str, str]] = {"username": "admin", "password": "", "authSource": "admin"}

    def credentials(self, hosts: str) -> Mapping[str, Any]:
        self.requests.append(hosts)
        return dict(self.current)


class Broken:
    def credentials(self, hosts: str) -> Mapping[str, Any]:
        raise KeyError("secret-of-the-vault")


class Odd:
    def credentials(self, hosts: str) -> Mapping[str, Any]:
        return {"tlsInsecure": True, "password": "secret-of-the-vault"}


HERE = __name__


@pytest.mark.covers("MDB-CONN-02")
def test_a_class_of_ones_own_gives_the_credentials() -> None:
    with MongoServer(auth=True) as server:
        login = server.uri.partition("//")[2].partition("@")[0]
        Vault.current["password"] = login.partition(":")[2]
        Vault.requests.clear()
        host = {"host": server.host, "port": server.port, "login": "nobody", "password": "wrong"}
        values = {**host, "extra": {"replicaSet": "rs0", "readPreference": "nearest"}}
        with pytest.raises(ConfigurationError, match="Authentication failed"):
            source(values).head()

        reading = source(values, authentication_class=f"{HERE}:Vault")
        with server.client() as client:
            assert capture_one(reading, client) == ["before", "after"]
            assert not [finding for finding in reading.check() if finding.level == "error"]
            assert set(Vault.requests) == {f"{server.host}:{server.port}"}
            assert len(Vault.requests) > 2, "each time that a process connects"
            # A later login: the class is called again, nothing is cached.
            client.admin.command("createUser", "later", pwd="p2", roles=["readAnyDatabase"])
        Vault.current.update(username="later", password="p2")
        reading.close()
        assert reading.head()
        reading.close()

        # What the connection string says itself wins.
        Vault.current.update(username="nobody", password="wrong")
        assert source({"host": server.uri}, authentication_class=f"{HERE}:Vault").head()
        with pytest.raises(ConfigurationError, match="Authentication failed"):
            source({"host": server.uri.replace(f"{login}@", "")}, authentication_class=f"{HERE}:Vault").head()
        classes = ((f"{HERE}:Broken", "failed"), (f"{HERE}:Odd", "no credentials"), ("a:B", "loaded"))
        for class_path, reported in classes:
            with pytest.raises(ConfigurationError, match=reported) as caught:
                source(values, authentication_class=class_path).head()
            assert "secret-of-the-vault" not in str(caught.value)


@pytest.mark.covers("MDB-CONN-15", "MDB-FAULT-02")
def test_sixteen_failed_attempts_and_their_pauses_end_a_run_after_twenty_minutes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nowhere = {"host": "127.0.0.1", "port": free_port(), "extra": {"serverSelectionTimeoutMS": 20}}
    slept: list[float] = []
    with ConnectionValues.read(nowhere, 0.02).client() as client, pytest.raises(TransientError):
        await_cluster_time(client, MongodbAdvanced(), sleep=slept.append)
    assert slept == [1, 2, 4, 8, 16, 32, 64, *[120] * 9]
    assert sum(slept) == 20 * 60 + 7

    advanced = MongodbAdvanced(
        connect_timeout_seconds=0.1, connect_backoff_seconds=0.001, connect_max_backoff_seconds=0.002
    )
    caplog.clear()
    began = time.monotonic()
    with caplog.at_level(logging.WARNING), pytest.raises(TransientError, match="the server doesn't respond"):
        source(nowhere, advanced=advanced).start()
    assert caplog.text.count("retrying in") == 16
    assert time.monotonic() - began < 10


@contextmanager
def failing(client: Any, name: str, **data: Any) -> Iterator[None]:
    client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data={"appName": name, **data})
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


@pytest.mark.covers("MDB-XD-19")
def test_the_check_of_a_connection_takes_no_longer_than_it_may(mongo_server: MongoServer) -> None:
    assert MongodbAdvanced().validation_timeout_seconds == 60
    host = f"mongodb://{mongo_server.host}:{mongo_server.port}/?replicaSet=rs0&appName=validated"
    advanced = MongodbAdvanced(validation_timeout_seconds=0.5)
    slow = {"failCommands": ["buildInfo"], "blockConnection": True, "blockTimeMS": 4000}
    with mongo_server.client() as client, failing(client, "validated", **slow):
        began = time.monotonic()
        (finding,) = source({"host": host}, advanced=advanced).check()
        took = time.monotonic() - began
    assert (finding.level, finding.subject) == ("error", "connection")
    assert took < 3
    with timeout(5):
        assert source({"host": host}, advanced=advanced).check()[0].level == "ok"


@pytest.mark.long
@pytest.mark.covers("MDB-XF-05")
def test_a_resting_cursor_outlives_the_servers_limits() -> None:
    assert MongodbAdvanced().session_refresh_seconds < 30 * 60
    short = (
        "localLogicalSessionTimeoutMinutes=1",
        "logicalSessionRefreshMillis=2000",
        "clientCursorMonitorFrequencySecs=1",
        "enableTimeoutOfInactiveSessionCursors=true",
    )
    options = [part for setting in short for part in ("--setParameter", setting)]
    with MongoServer(options=options) as server, server.client() as client:
        client.shop.a.insert_many([{"_id": n} for n in range(40)])
        client.admin.command("setParameter", 1, cursorTimeoutMillis=3000)
        values = ConnectionValues.read({"host": server.uri}, 3.0)
        advanced = MongodbAdvanced(fetch_size=10, session_refresh_seconds=5.0)
        reading = source({"host": server.uri}, advanced=advanced)
        (part,) = reading.plan_snapshot("shop.a").ranges
        batches = reading.snapshot_reader().read([part], ReadMetrics())
        first = next(batches)
        alone = pinned_client(values)
        find = {"find": "a", "batchSize": 10, "noCursorTimeout": True}
        lonely = RawCursor(alone, "shop", find, 10, "reading")
        lonely.next()
        impatient = RawCursor(alone, "shop", {**find, "noCursorTimeout": False}, 10, "reading")
        impatient.next()
        time.sleep(8)
        with pytest.raises(TransientError, match="43"):
            impatient.next()
        deadline = time.monotonic() + 150
        while time.monotonic() < deadline and _has_cursor(client, lonely):
            time.sleep(2)
        with pytest.raises(TransientError, match="43"):
            lonely.next()  # its session has expired
        rows = first.num_rows + sum(batch.num_rows for batch in batches)
        assert rows == 40
        reading.close()
        alone.close()


def _has_cursor(client: Any, cursor: RawCursor) -> bool:
    own = {"$match": {"cursor.cursorId": cursor._cursor_id}}
    return bool(list(client.admin.aggregate([{"$currentOp": {"idleCursors": True, "allUsers": True}}, own])))
