"""Encrypted segments: what a key opens, and what is said without the right one."""

from __future__ import annotations

import json
import os
import pickle
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_cdc_provider.changes.record import CHANGE
from airflow_cdc_provider.cli import offline_commands
from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.sources.cassandra.capture import LogFolder, head, plan_segments
from airflow_cdc_provider.sources.cassandra.commit_log.encryption import Keys, open_keys
from airflow_cdc_provider.sources.cassandra.commit_log.sections import (
    CorruptRange,
    plain_sections,
    walk_sections,
)
from airflow_cdc_provider.sources.cassandra.commit_log.segments import SegmentBytes, read_descriptor
from airflow_cdc_provider.sources.cassandra.options import CassandraEncryption, CassandraOptions
from airflow_cdc_provider.sources.cassandra.source import CassandraSource
from airflow_cdc_provider.sources.contract import Plan, ReadLimit, ReadMetrics
from airflow_cdc_provider.sources.cql.reasons import code
from tests.unit.sources.cassandra.commit_logs import entry, put_segment, segment
from tests.unit.sources.cassandra.encrypted_segments import IV, KEY, KEYSTORE, RECORDED, encrypt
from tests.unit.sources.cassandra.keystores import MANY
from tests.unit.sources.cassandra.recordings import of_kind, recording

WORD = "cassandra"
OURS = {"keystore": KEYSTORE, "keystore_password": WORD}
OTHERS = {"keystore": MANY, "keystore_password": "outer-word", "key_password": "inner-word"}
ID = 1795247392875
PARAMETERS = {"encCipher": "AES/CBC/PKCS5Padding", "encKeyAlias": "Mine:1", "encIV": IV.hex()}
KEYS = Keys("keystore.jceks", {"mine:1": KEY})
MUTATIONS: list[list[bytes]] = [[os.urandom(9000) for _ in range(30)], [], [b"the last mutation " * 20]]


def plan(log: LogFolder) -> Plan:
    return plan_segments(log, None, head(log), ReadLimit())


def put(folder: Path, data: bytes) -> Path:
    return put_segment(folder, ID, data)


def encrypted(**parameters: Any) -> bytes:
    return segment(ID, MUTATIONS, parameters={**PARAMETERS, **parameters}, compress=encrypt)


def read(path: Path, keys: Keys | None) -> list[bytes | CorruptRange]:
    with SegmentBytes(str(path)) as source:
        descriptor = read_descriptor(source.read(0, 1 << 17), str(path))
        chain = walk_sections(source, descriptor, complete=True)
        return [plain for _, plain in plain_sections(source, descriptor, chain.sections, keys)]


PLAIN = [b"".join(map(entry, mutations)) for mutations in MUTATIONS]


def test_sections_of_several_blocks_are_joined(tmp_path: Path) -> None:
    assert len(PLAIN[0]) > 4 * 65536
    assert read(put(tmp_path, encrypted()), KEYS) == PLAIN


@pytest.mark.parametrize("place", ["padding", "length of a block", "length of what it holds"])
def test_a_corrupt_block_costs_only_its_section(tmp_path: Path, place: str) -> None:
    data = bytearray(encrypted())
    begin = len(segment(ID, [], parameters=PARAMETERS)) + 8 + 4
    length = int.from_bytes(data[begin : begin + 4], "big")
    offset = {"padding": 8 + length - 1, "length of a block": 1}.get(place, 6)
    data[begin + offset] ^= 0x40

    first, empty, last = read(put(tmp_path, bytes(data)), KEYS)

    assert isinstance(first, CorruptRange)
    assert code(first.reason) == "section-unreadable"
    assert [empty, last] == PLAIN[1:]
    plan(LogFolder(str(tmp_path), keys=KEYS))  # a corrupt block doesn't count as a wrong key


def test_a_corrupt_byte_that_decrypts_is_detected_by_the_checksums_of_entries(tmp_path: Path) -> None:
    data = bytearray(encrypted())
    data[len(segment(ID, [], parameters=PARAMETERS)) + 600] ^= 0x40
    first, *rest = read(put(tmp_path, bytes(data)), KEYS)
    assert isinstance(first, bytes)
    differing = [i for i, (a, b) in enumerate(zip(first, PLAIN[0], strict=True)) if a != b]
    assert len(differing) > 10
    assert differing[-1] - differing[0] < 32
    assert rest == PLAIN[1:]


def test_key_alias_replaces_a_missing_key(tmp_path: Path) -> None:
    path = put(tmp_path, encrypted(encKeyAlias="of another name"))
    with pytest.raises(ConfigurationError, match=r"needs key of another.*found keys mine:1.*key_alias"):
        read(path, KEYS)
    assert read(path, replace(KEYS, alias="mine:1")) == PLAIN


@pytest.mark.parametrize(
    ("keys", "parameters", "message"),
    [
        (None, {}, r"is encrypted with key Mine:1: expected option source\.encryption.*keystore_password"),
        (
            Keys("k.jceks", {"mine:1": KEY[::-1]}),
            {},
            "another key with that alias in k.jceks",
        ),
        (Keys("k.jceks", {"mine:1": KEY[:7]}), {}, "a key of 7 bytes and an IV of 16"),
        (KEYS, {"encIV": "00"}, "a key of 16 bytes and an IV of 1"),
        (KEYS, {"encIV": "no hex"}, "an IV of 0"),
        (KEYS, {"encCipher": "AES/GCM/NoPadding"}, "encrypted by AES/GCM/NoPadding: expected AES/CBC"),
        (Keys("k.jceks", {}, ("mine:1",)), {}, "password as source.encryption.key_password.*doesn't decrypt"),
    ],
)
def test_a_segment_that_no_key_decrypts_is_rejected_at_planning(
    tmp_path: Path, keys: Keys | None, parameters: dict[str, str], message: str
) -> None:
    path = put(tmp_path, encrypted(**parameters))
    with pytest.raises(ConfigurationError, match=message) as raised:
        plan(LogFolder(str(tmp_path), keys=keys))
    assert path.name in str(raised.value)


def options(**given: str) -> CassandraEncryption:
    return CassandraEncryption(**{"keystore": KEYSTORE, "keystore_password": WORD, **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"keystore_password": ""},
            "password of keystore .* is missing.*in the extra of the Airflow connection",
        ),
        ({"keystore_password": "wrong"}, "another password"),
        (
            {"key_password": "wrong"},
            "has no usable key: expected the key's password as source.encryption.key_pass",
        ),
        ({"key_alias": "cdc:2"}, "key cdc:2 of source.encryption.key_alias.*found keys cdc:1"),
        ({"keystore_password": "${env:CDC_NOT_SET}"}, "environment variable CDC_NOT_SET"),
        ({"keystore_password": "${file:/none}"}, "is missing: expected file /none"),
    ],
)
def test_a_wrong_keystore_option_is_rejected_at_once(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as raised:
        open_keys(options(**given), {})
    assert WORD not in str(raised.value).replace(KEYSTORE, "")


def test_passwords_may_be_references_or_in_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = open_keys(options(), {})
    monkeypatch.setenv("KEYSTORE_WORD", WORD)
    (tmp_path / "word").write_text(f"{WORD}\n")
    (tmp_path / "word").chmod(0o600)
    named = options(keystore_password="${env:KEYSTORE_WORD}", key_password=f"${{file:{tmp_path / 'word'}}}")
    assert open_keys(named, {}) == expected
    connection = {"extra": {"keystore_password": WORD}}
    assert open_keys(options(keystore_password=""), connection) == expected

    (tmp_path / "word").chmod(0o644)
    with pytest.raises(
        ConfigurationError, match=r"can be read by others: expected mode 0600; .* found mode 0644"
    ):
        open_keys(named, {})


def test_key_alias_is_checked_and_no_keystore_means_no_keys() -> None:
    many = CassandraEncryption(MANY, "outer-word", "inner-word", "SHORT")
    keys = open_keys(many, {})
    assert keys is not None
    assert (keys.alias, set(keys.opened), keys.closed) == ("short", {"short", "long", "old"}, ("other",))
    assert open_keys(CassandraEncryption(), {}) is None


def test_neither_options_nor_keys_contain_a_secret_in_their_repr() -> None:
    declared = options(key_password="inner-word")
    keys = open_keys(options(), {})
    assert keys is not None
    (key,) = keys.opened.values()
    printed = f"{declared!r} {declared} {keys!r} {CassandraOptions(encryption=declared)!r}".replace(
        KEYSTORE, ""
    )
    assert not any(secret in printed for secret in (WORD, "inner-word", repr(key)[2:-1], key.hex()))


def source(keys_of: CassandraEncryption) -> CassandraSource:
    declared = CassandraOptions(
        cdc_raw=str(RECORDED / "cdc_raw"), schema_file=str(RECORDED / "schema.cql"), encryption=keys_of
    )
    return CassandraSource(declared, {}, lambda table: True, recorded=True)


@pytest.mark.recorded
@pytest.mark.covers("CAS-C50-08")
def test_the_key_travels_with_the_reader_and_not_with_the_plan() -> None:
    reading_source = source(options())
    plan = reading_source.plan(None, reading_source.head(), ReadLimit())
    reader = pickle.loads(pickle.dumps(reading_source.reader()))  # as Spark sends it
    parts = pickle.loads(pickle.dumps(plan.partitions))

    records = pa.Table.from_batches(reader.read(parts, ReadMetrics()))

    tables = recording("v7-encrypted").schemas.tables
    cdc = [u for u in recording("v7-encrypted").updates() if tables[f"{u['keyspace']}.{u['table']}"].cdc]
    assert len(of_kind(records, CHANGE)) == len([u for u in cdc if u["table"] != "cnt"])
    keys = recording("v7-encrypted").keys
    assert keys is not None
    (key,) = keys.opened.values()
    assert key not in pickle.dumps(plan.partitions)


def test_check_reports_whether_segments_are_readable(tmp_path: Path) -> None:
    (found,) = [f for f in source(options()).check() if f.subject == "segments"]
    assert (found.level, found.message) == ("ok", "all are readable")
    for wrong in (options(keystore=""), options(keystore_password="wrong")):
        (found,) = [f for f in source(wrong).check() if f.subject == "segments"]
        assert found.level == "error"
        assert found.remedy

    put(tmp_path, b"no header")
    damaged = CassandraSource(CassandraOptions(cdc_raw=str(tmp_path)), {}, lambda table: True)
    (found,) = [f for f in damaged.check() if f.subject == "segments"]
    assert found.level == "error"  # a run would capture the others, and fail with this one
    assert "header" in found.message


@pytest.fixture
def cdc(tmp_path: Path) -> Callable[..., None]:
    """Run ``airflow cdc rows`` or ``events`` with a declaration's encryption."""

    def run(command: Callable[[Namespace], None], **encryption: str) -> None:
        declared = {"name": "c", "source": {"type": "cassandra", "encryption": encryption}, "tables": [".*"]}
        (tmp_path / "c.yaml").write_text(json.dumps(declared))
        command(
            Namespace(
                connector=str(tmp_path / "c.yaml"),
                input=str(RECORDED / "cdc_raw"),
                schema=str(RECORDED / "schema.cql"),
                at=1_795_248_000,
                table="" if command is offline_commands.events else "shop_a.rng",
                from_lake=False,
                after_batch=0,
            )
        )

    return run


@pytest.mark.recorded
@pytest.mark.covers("CAS-C50-08")
def test_the_cli_reads_encrypted_recordings(
    cdc: Callable[..., None], capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    cdc(offline_commands.rows, **OURS, key_password=WORD, key_alias="cdc:1")
    assert capfdbinary.readouterr().out.count(b"\n") > 5
    cdc(offline_commands.events, **OURS)
    assert capfdbinary.readouterr().out.count(b"\n") > 500


@pytest.mark.parametrize(
    ("encryption", "message"),
    [
        ({}, "is encrypted with key cdc:1"),
        ({"keystore": KEYSTORE, "keystore_password": "hunter2"}, "another password"),
        ({**OURS, "key_password": "hunter2"}, "doesn't decrypt key cdc:1"),
        ({**OURS, "key_alias": "x"}, "key x of source.encryption"),
        (OTHERS, "needs key cdc:1"),
        ({**OTHERS, "key_alias": "short"}, "can't be decrypted"),
    ],
)
def test_the_cli_reports_errors_in_one_line(
    cdc: Callable[..., None],
    encryption: dict[str, str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        cdc(offline_commands.rows, **encryption)
    assert ended.value.code == 1
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("error: [CDC-CONFIGURATION] ")
    assert message in line
    assert "hunter2" not in line
    assert "-word" not in line
    assert printed.out == ""


def test_batches_of_encrypted_segments_are_as_small_as_of_others() -> None:
    log = recording("v7-encrypted").log
    plan = plan_segments(log, None, head(log), ReadLimit(bytes=50_000))
    assert not plan.at_head
    assert sum(s.end - s.position for part in plan.partitions for s in part.sections) < 400_000
