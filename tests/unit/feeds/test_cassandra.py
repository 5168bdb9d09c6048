"""Reading a cdc_raw folder while a node writes to it."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.feeds.cassandra import NodeSettings, list_segments, measure_nodes
from tests.unit.conftest import WriteSegment


def test_segments_come_by_host_and_number_with_what_their_idx_says(
    write_segment: WriteSegment, tmp_path: Path
) -> None:
    write_segment(10, end=500, folder=tmp_path / "host-b")
    write_segment(9, end=900, completed=True, folder=tmp_path / "host-b")
    write_segment(11, folder=tmp_path / "host-b")
    write_segment(1, folder=tmp_path / "host-a", version=6)

    found = list_segments(str(tmp_path))

    assert [(s.host, s.id, s.readable, s.complete) for s in found] == [
        ("host-a", 1, True, True),
        ("host-b", 9, True, True),
        ("host-b", 10, True, False),
        ("host-b", 11, False, False),
    ]


@pytest.mark.covers("CAS-C40-02")
def test_a_half_written_idx_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "CommitLog-7-1_cdc.idx"
    path.write_text("")
    path.with_name("CommitLog-7-1.log").write_bytes(b"x")

    def finish() -> None:
        time.sleep(0.03)
        path.write_text("4096\n")
        time.sleep(0.03)
        path.write_text("4096\nCOMPLETED")

    writer = threading.Thread(target=finish)
    writer.start()
    (segment,) = list_segments(str(tmp_path))
    writer.join()
    index = segment.index
    assert index is not None
    assert (index.end, index.completed) == (4096, True)


def test_space_is_that_of_the_fullest_node(write_segment: WriteSegment, tmp_path: Path) -> None:
    write_segment(1, end=1, size=100, folder=tmp_path / "a")
    write_segment(2, end=1, size=700, folder=tmp_path / "b")
    space = measure_nodes(str(tmp_path), 1000)[0]
    assert (space.host, space.segments, space.used_bytes) == ("b", 1, 701)
    assert space.used_ratio == 0.701
    assert space.oldest_seconds is not None


def test_a_missing_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't be read.*No such file.*mount it"):
        measure_nodes(str(tmp_path / "nowhere"))


@pytest.mark.covers("CAS-SETUP-01", "CAS-SETUP-03", "CAS-C41-02")
@pytest.mark.parametrize(
    ("text", "total", "interval"),
    [
        (
            "cdc_enabled: true\ncdc_total_space: 512MiB\ncdc_free_space_check_interval: 50ms\n",
            512 << 20,
            0.05,
        ),
        (
            "cdc_enabled: true\ncdc_total_space_in_mb: 64\ncdc_free_space_check_interval_ms: 500\n",
            64 << 20,
            0.5,
        ),
        ("cdc_enabled: true\n", None, 0.25),
    ],
)
def test_a_nodes_yaml_has_room_and_interval_of_old_and_new_releases(
    tmp_path: Path, text: str, total: int | None, interval: float
) -> None:
    path = tmp_path / "cassandra.yaml"
    path.write_text(text)
    settings = NodeSettings.read(str(path))
    assert (settings.enabled, settings.total_bytes, settings.check_interval_seconds) == (
        True,
        total,
        interval,
    )


@pytest.mark.covers("CAS-SETUP-01")
@pytest.mark.parametrize("text", ["cdc_enabled: false\n", "cluster_name: blue\n"])
def test_a_yaml_that_does_not_turn_cdc_on_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cassandra.yaml"
    path.write_text(text)
    assert not NodeSettings.read(str(path)).enabled


@pytest.mark.covers("CAS-SETUP-03")
@pytest.mark.parametrize(
    ("volume", "room"), [(8 << 30, 1 << 30), (1 << 40, 4096 << 20), (32 << 30, 4096 << 20)]
)
def test_without_a_setting_the_room_is_an_eighth_of_the_volume_and_4_gib_at_most(
    write_segment: WriteSegment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, volume: int, room: int
) -> None:
    write_segment(1, end=1, size=1 << 20)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_blocks=volume // 4096, f_frsize=4096))
    (space,) = measure_nodes(str(tmp_path / "cdc_raw"))
    assert space.total_bytes == room
    assert space.used_ratio == pytest.approx(((1 << 20) + 1) / room)


@pytest.mark.covers("CAS-D3X-15")
def test_files_that_vanish_while_they_are_measured_are_not_counted(
    write_segment: WriteSegment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        write_segment(number, end=1, size=100)
    folder = tmp_path / "cdc_raw"
    real = os.scandir

    def scan_then_lose(path: Path) -> list[os.DirEntry[str]]:
        with real(path) as entries:
            listed = list(entries)
        (folder / "CommitLog-7-2.log").unlink(missing_ok=True)
        return listed

    class Listing(list):  # type: ignore[type-arg]
        def __enter__(self) -> Listing:
            return self

        def __exit__(self, *_: object) -> None:
            """Nothing is open."""

    monkeypatch.setattr(os, "scandir", lambda path: Listing(scan_then_lose(path)))
    (space,) = measure_nodes(str(folder), 1000)
    assert (space.segments, space.used_bytes) == (2, 203)
