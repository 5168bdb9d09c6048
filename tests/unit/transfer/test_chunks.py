"""Chunks hold whole sections, say what they are, and add up to the node's segments."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import CorruptInput
from airflow_cdc_provider.transfer.chunks import Manifest
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.transfer import Transfer, TransferCounts
from tests.unit.transfer.nodes import Node, chunked, files, noise, whole


class Site:
    """A node, a bucket (here a folder), and the landing area."""

    def __init__(self, root: Path, **how: Any) -> None:
        self.node = Node(root / "cdc_raw", **how)
        self.bucket = root / "bucket"
        self.landing = root / "landing"
        self.errors = root / "errors"

    def ship(self, **arguments: Any) -> TransferCounts:
        return Transfer(self.node.segments, chunked(self.bucket), **arguments).run()

    def fetch(self, **arguments: Any) -> TransferCounts:
        target = whole(self.landing)
        return Transfer(chunked(self.bucket), target, errors=whole(self.errors), **arguments).run()

    def manifest(self, number: int) -> Any:
        return json.loads((self.bucket / f"CommitLog-7-{number}.json").read_text())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("capacity_bytes", [0, 20_000])
def test_a_segment_travels_in_chunks_while_it_grows_and_is_put_together(
    tmp_path: Path, compressed: bool, capacity_bytes: int
) -> None:
    site = Site(tmp_path, compressed=compressed, capacity_bytes=capacity_bytes)
    seen: dict[str, bytes] = {}
    for number in range(12):
        site.node.grows(1, noise(400, number), ahead=noise(100))
        if number % 3 == 0:
            site.ship()
            site.fetch()
            assert files(site.landing)["CommitLog-7-1.log"] == site.node.durable(1)
            now = {f.name: f.read_bytes() for f in site.bucket.glob("*.log.*")}
            assert seen.items() <= now.items(), "a chunk never changes"
            seen = now
    site.node.finishes(1)
    site.ship()
    site.fetch()
    assert files(site.landing) == files(site.node.cdc_raw)
    chunks = site.manifest(1)["chunks"]
    ends = [0, *(chunk["to"] for chunk in chunks)]
    assert [chunk["from"] for chunk in chunks] == ends[:-1]
    assert len(chunks) > 4


def test_chunks_are_cut_at_sections_once_they_are_large_enough(site: Site) -> None:
    for number in range(10):
        site.node.grows(1, noise(292, number))
    site.ship()
    chunks = site.manifest(1)["chunks"]
    assert [chunk["to"] - chunk["from"] for chunk in chunks] == [1220, 1200, 600], "4, 4 and 2 sections"


def test_what_arrived_and_is_finished_leaves_the_place_before(site: Site) -> None:
    site.node.finishes(1, noise(3000))
    site.node.grows(2, noise(3000))
    truth = files(site.node.cdc_raw)
    assert site.ship(after_transfer="delete").deleted == 1
    assert site.fetch(after_transfer="delete").deleted == 1
    assert files(site.landing) == truth
    assert {name.split(".")[0] for name in files(site.bucket)} == {"CommitLog-7-2"}
    assert "CommitLog-7-1.log" not in files(site.node.cdc_raw)


@pytest.mark.covers("CAS-CFG-15")
@pytest.mark.parametrize("how", ["changed", "shortened", "missing", "manifest"])
def test_a_chunk_that_is_not_what_left_the_node_is_not_shown(site: Site, how: str) -> None:
    site.node.finishes(1, noise(3000))
    site.node.finishes(2, noise(3000))
    site.ship()
    chunk = min(site.bucket.glob("CommitLog-7-1.log.*"))
    good = chunk.read_bytes()
    if how == "changed":
        chunk.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    elif how == "shortened":
        chunk.write_bytes(good[:-1])
    elif how == "missing":
        chunk.unlink()
    else:
        (site.bucket / "CommitLog-7-1.json").write_text("{")

    counts = site.fetch(after_transfer="delete")

    assert (counts.copied, counts.errors, counts.deleted) == (1, 1, 1)
    assert set(files(site.landing)) == {"CommitLog-7-2.log", "CommitLog-7-2_cdc.idx"}
    reason = json.loads((site.errors / "CommitLog-7-1.log.reason.json").read_text())["reason"]
    assert "CORRUPT-INPUT" in reason
    if how != "manifest":
        chunk.write_bytes(good)
        assert site.fetch().copied == 1, "mended, the next run brings it"


def test_a_chunk_without_a_manifest_is_cleared_away_by_the_next_shipper(site: Site) -> None:
    site.node.grows(1, noise(500))
    site.ship()
    leftover = site.bucket / "CommitLog-7-1.log.528-700"
    leftover.write_bytes(b"of a killed shipper")
    site.node.grows(1, noise(500, 1))
    site.ship()
    assert leftover.exists(), "another shipper may just have written it"
    os.utime(leftover, (0, time.time() - 3601))
    site.ship()
    site.fetch()
    assert not leftover.exists()
    assert files(site.landing)["CommitLog-7-1.log"] == site.node.durable(1)


def test_a_segment_that_a_crashed_node_finishes_again_is_shipped_again(site: Site) -> None:
    site.node.finishes(1, noise(3000))
    site.ship()
    size = site.node.log(1).stat().st_size
    site.node.says(1, f"{size + 100}\nCOMPLETED")
    with site.node.log(1).open("ab") as log:
        log.write(bytes(100))
    site.ship()
    site.ship()
    site.fetch()
    assert files(site.landing) == files(site.node.cdc_raw)


def test_a_broken_manifest_of_a_segment_that_the_node_dropped_does_not_stop_the_shipper(site: Site) -> None:
    site.node.grows(1, noise(500))
    site.ship()
    (site.bucket / "CommitLog-7-1.json").write_text("{")
    site.node.log(1).unlink()
    site.node.log(1).with_name("CommitLog-7-1_cdc.idx").unlink()
    site.node.grows(2, noise(100))
    assert [site.ship().lost, site.ship().lost] == [1, 0]
    assert site.fetch().lost == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"chunks": [{"from": 0, "to": "/../../elsewhere", "sha256": ""}]},
        {"chunks": [{"from": 0, "to": 1.5, "sha256": ""}]},
        {"position": "0"},
        {"index": 5},
        {"format": 2},
    ],
)
def test_a_manifest_of_another_form_is_reported_and_names_no_file(wrong: dict[str, Any]) -> None:
    sound = {"format": 1, "index": "5", "position": 0, "chunks": []}
    Manifest.from_json("manifest", json.dumps(sound).encode())
    with pytest.raises(CorruptInput, match="manifest is not a manifest"):
        Manifest.from_json("manifest", json.dumps({**sound, **wrong}).encode())


def test_a_segment_removed_while_it_is_fetched_is_counted_as_vanished(site: Site) -> None:
    site.node.finishes(1, noise(3000))
    site.ship()

    class Losing(FolderStore):
        def read(self, name: str, begin: int = 0, end: int | None = None) -> Any:
            if ".log." in name:
                for file in self.path.iterdir():
                    file.unlink()
            return super().read(name, begin, end)

    source = chunked(site.bucket)
    source.store = Losing(site.bucket)
    counts = Transfer(source, whole(site.landing)).run()
    assert (counts.vanished, counts.errors) == (1, 0)
    assert files(site.landing) == {}


@pytest.mark.parametrize("after_transfer", ["delete", "keep"])
def test_a_segment_that_the_node_drops_is_reported_as_lost_by_shipper_and_fetcher(
    site: Site, after_transfer: Any
) -> None:
    site.node.grows(1, noise(3000))
    site.ship()
    site.fetch()
    site.node.grows(1, noise(3000, 1))
    site.ship()
    site.node.log(1).unlink()
    site.node.log(1).with_name("CommitLog-7-1_cdc.idx").unlink()
    site.node.grows(2, noise(100))
    assert [site.ship().lost, site.ship().lost] == [1, 0], "once"

    counts = [site.fetch(after_transfer=after_transfer).lost for _ in range(2)]

    assert counts == [1, 0]
    assert "CommitLog-7-1.log" not in files(site.landing)
    assert files(site.errors)["CommitLog-7-1.log"] == site.node.durable(1), "all that was shipped is kept"

    retried = [site.fetch(after_transfer=after_transfer, retry_errors=True).lost for _ in range(2)]
    assert retried == [0, 0], "it is not given up again"
    landed = files(site.landing)
    assert landed["CommitLog-7-1.log"] == site.node.durable(1)
    assert landed["CommitLog-7-1_cdc.idx"].endswith(b"COMPLETED"), "capture reads what there is of it"

    for _ in range(2):
        cleared = site.fetch(
            after_transfer=after_transfer, after_commit="delete", is_captured=lambda segment: segment.id == 1
        )
        assert cleared.lost == 0
    assert "CommitLog-7-1.log" not in files(site.landing)
