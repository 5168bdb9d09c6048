from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_cdc_provider.sources.cassandra.check import (
    SILENT_SECONDS,
    NodeSettings,
    check_capture,
    check_consistency,
    check_folder,
    check_nodes,
    read_settings,
)
from airflow_cdc_provider.sources.cassandra.options import CassandraOptions
from airflow_cdc_provider.sources.contract import Finding

MIB = 1 << 20


def _levels(findings: list[Finding], subject: str) -> list[str]:
    return [f.level for f in findings if f.subject.startswith(subject)]


@pytest.mark.covers("CAS-SETUP-03")
@pytest.mark.parametrize(
    ("used", "blocks", "level", "words"),
    [
        (1, True, "ok", "1 MiB of 10 MiB"),
        (8, True, "warning", "8 MiB of 10 MiB"),
        (10, True, "error", "writes to tables with cdc = true fail"),
        (12, False, "error", "the oldest segments are being deleted"),
    ],
)
def test_a_full_cdc_raw_is_reported_before_and_when_writes_fail(
    tmp_path: Path, used: int, blocks: bool, level: str, words: str
) -> None:
    for number in range(used):
        with (tmp_path / f"CommitLog-7-{number}.log").open("wb") as file:
            file.truncate(MIB)
    settings = {"n": NodeSettings(cdc_enabled=True, total_space_bytes=10 * MIB, blocks_writes=blocks)}
    findings = list(check_folder(CassandraOptions(cdc_raw=str(tmp_path)), settings))
    (space,) = [f for f in findings if f.subject.startswith("space")]
    assert (space.level, words in space.message) == (level, True)
    assert bool(space.remedy) == (level != "ok")


def test_each_nodes_folder_is_looked_at(tmp_path: Path) -> None:
    for node, size in (("a", 1), ("b", 10)):
        (tmp_path / node).mkdir()
        with (tmp_path / node / "CommitLog-7-1.log").open("wb") as file:
            file.truncate(size * MIB)
    settings = {"n": NodeSettings(total_space_bytes=10 * MIB)}
    findings = list(check_folder(CassandraOptions(cdc_raw=str(tmp_path)), settings))
    assert _levels(findings, "space of a") == ["ok"]
    assert _levels(findings, "space of b") == ["error"]


def test_a_folder_that_is_not_there_or_not_declared_is_an_error(tmp_path: Path) -> None:
    for options in (CassandraOptions(), CassandraOptions(cdc_raw=str(tmp_path / "gone"))):
        (finding,) = check_folder(options, {})
        assert (finding.level, bool(finding.remedy)) == ("error", True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_files_that_can_not_be_read_are_counted(tmp_path: Path) -> None:
    (tmp_path / "CommitLog-7-1.log").touch(mode=0o000)
    findings = list(check_folder(CassandraOptions(cdc_raw=str(tmp_path)), {}))
    assert _levels(findings, "cdc_raw") == ["error"]


@pytest.mark.covers("CAS-SETUP-01", "CAS-C50-01")
@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        (NodeSettings(True, 0, True), ["ok"]),
        (NodeSettings(False, 0, True), ["error"]),
        (NodeSettings(), ["warning"]),
        (NodeSettings(True, 0, False), ["ok", "warning"]),
        (NodeSettings(True, 0, True, True), ["ok"]),
        (NodeSettings(True, 0, True, False), ["ok", "warning"]),
    ],
)
def test_a_node_that_does_not_capture_is_an_error(settings: NodeSettings, levels: list[str]) -> None:
    findings = list(check_capture({"10.0.0.1": settings}))
    assert [f.level for f in findings] == levels
    assert all("10.0.0.1" in f.subject for f in findings)


@pytest.mark.covers("CAS-C41-02")
def test_settings_are_read_in_the_words_of_each_version() -> None:
    old = {"cdc_enabled": "true", "cdc_total_space_in_mb": "100"}
    assert read_settings(old) == NodeSettings(True, 100 * MIB, None)
    new = {"cdc_enabled": "false", "cdc_total_space": "2GiB", "cdc_block_writes": "false"}
    assert read_settings(new) == NodeSettings(False, 2048 * MIB, False)
    assert read_settings({"cdc_total_space": "much"}) == NodeSettings()
    assert read_settings({"cdc_on_repair_enabled": "false"}) == NodeSettings(logs_repairs=False)


@pytest.mark.covers("CAS-CFG-02", "CAS-SNAP-06")
@pytest.mark.parametrize(
    ("name", "release", "levels"),
    [
        ("ALL", "3.11.19", []),
        ("ONE", "5.0.9", []),
        ("two", "5.0.9", []),
        ("THREE", "5.0.9", []),
        ("QUORUM", "5.0.9", []),
        ("local_quorum", "4.1.10", []),
        ("LOCAL_ONE", "5.0.9", []),
        ("NODE_LOCAL", "4.0.19", ["warning"]),
        ("NODE_LOCAL", "3.11.19", ["error"]),
        ("ANY", "5.0.9", ["error"]),
        ("EACH_QUORUM", "5.0.9", ["error"]),
        ("X", "5.0.9", ["error"]),
    ],
)
def test_a_consistency_level_must_be_one_for_reads(name: str, release: str, levels: list[str]) -> None:
    assert [finding.level for finding in check_consistency(name, release)] == levels


MEMBERS = {"id-a": "10.0.0.1", "id-b": "10.0.0.2"}


def _segments(folder: Path, age_seconds: float = 0.0) -> None:
    folder.mkdir()
    index = folder / "CommitLog-7-1_cdc.idx"
    index.write_text("7")
    os.utime(index, (2_000_000_000 - age_seconds, 2_000_000_000 - age_seconds))


def _findings(tmp_path: Path, members: dict[str, str], node: str = "") -> list[tuple[str, str]]:
    findings = list(check_nodes(CassandraOptions(cdc_raw=str(tmp_path), node=node), members))
    assert all(f.level == "warning" and f.remedy for f in findings)
    return [(f.subject, f.message) for f in findings]


def test_every_node_without_a_folder_is_reported(tmp_path: Path) -> None:
    _segments(tmp_path / "id-a")
    ((subject, message),) = _findings(tmp_path, MEMBERS)
    assert subject == "node 10.0.0.2" and "no folder id-b" in message

    _segments(tmp_path / "id-b")
    assert _findings(tmp_path, MEMBERS) == []


def test_a_folder_of_a_node_that_left_is_reported(tmp_path: Path) -> None:
    for host_id in (*MEMBERS, "id-c"):
        _segments(tmp_path / host_id)
    assert [subject for subject, _ in _findings(tmp_path, MEMBERS)] == ["node id-c"]


def test_a_node_without_new_segments_is_reported(tmp_path: Path) -> None:
    _segments(tmp_path / "id-a")
    _segments(tmp_path / "id-b", SILENT_SECONDS + 3600)
    ((subject, message),) = _findings(tmp_path, MEMBERS)
    assert (subject, "25 hours older" in message) == ("node 10.0.0.2", True)


def test_segments_of_one_node_alone_are_of_the_only_node_or_the_named_one(tmp_path: Path) -> None:
    (tmp_path / "CommitLog-7-1_cdc.idx").write_text("7")
    assert _findings(tmp_path, {"id-a": "10.0.0.1"}) == []
    assert _findings(tmp_path, {"id-a": "10.0.0.1"}, node="id-a") == []
    assert [subject for subject, _ in _findings(tmp_path, MEMBERS, node="id-a")] == ["node 10.0.0.2"]
