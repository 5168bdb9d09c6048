"""Reading a cdc_raw folder while a node writes to it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.hooks.cdc_raw import NodeSettings, list_segments, measure, read_index
from tests.unit.hooks.conftest import WriteSegment


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

    def finish() -> None:
        time.sleep(0.1)
        path.write_text("4096\n")
        time.sleep(0.1)
        path.write_text("4096\nCOMPLETED")

    writer = threading.Thread(target=finish)
    writer.start()
    index = read_index(path, patience_seconds=5)
    writer.join()
    assert index is not None
    assert (index.end, index.completed) == (4096, True)


def test_space_is_that_of_the_fullest_node(write_segment: WriteSegment, tmp_path: Path) -> None:
    write_segment(1, end=1, size=100, folder=tmp_path / "a")
    write_segment(2, end=1, size=700, folder=tmp_path / "b")
    space = measure(str(tmp_path), 1000)
    assert (space.host, space.segments, space.used_bytes) == ("b", 1, 701)
    assert space.used_ratio == 0.701
    assert space.oldest_seconds is not None


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"can't be read.*No such file.*mount it"):
        measure(str(tmp_path / "nowhere"))


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
def test_a_nodes_yaml_tells_room_and_interval_of_old_and_new_releases(
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
