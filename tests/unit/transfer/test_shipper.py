"""The shipper: its configuration, its rounds, and what it needs of a node."""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError, TransientError
from airflow_cdc_provider.transfer.openssh import OpenSshStore
from airflow_cdc_provider.transfer.shipper import Settings, Shipper, main, target_store
from airflow_cdc_provider.transfer.stores import FolderStore, RememberingStore
from tests.conftest import ROOT
from tests.unit.transfer.nodes import HOST, Node, files, noise

Config = Callable[..., Path]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """Write a configuration: ``config(option=value)``; None leaves an option out."""

    def write(extra: str = "", **options: Any) -> Path:
        given = {
            "cdc_raw": tmp_path / "cdc_raw",
            "host_id": HOST,
            "target": tmp_path / "landing",
            "interval_seconds": 0.1,
            **options,
        }
        lines = [f"{name} = {value}\n" for name, value in given.items() if value is not None]
        path = tmp_path / "cdc-shipper.ini"
        path.write_text("".join(["[shipper]\n", *lines, extra]))
        return path

    return write


def test_the_example_configuration_can_be_read_and_names_every_option() -> None:
    from airflow_cdc_provider.transfer.shipper import _OPTIONS

    path = ROOT / "packaging" / "shipper" / "cdc-shipper.ini"
    settings = Settings.read(path)
    assert (settings.layout, settings.interval_seconds, settings.delete_shipped) == ("chunks", 10, True)
    for options in _OPTIONS.values():
        for name in options:
            assert f"\n{name} =" in path.read_text()


@pytest.mark.parametrize(
    ("options", "extra", "text"),
    [
        ({"host_id": None}, "", r"lacks an option: expected host_id"),
        ({"host_id": "../other"}, "", "invalid host_id"),
        ({"host_id": "a\n !reboot"}, "", "invalid host_id"),
        ({"colour": "red"}, "", r"unknown option \[shipper\] colour"),
        ({}, "[colours]\na = 1\n", r"unknown option \[colours\] a"),
        ({"parallel": "many"}, "", "invalid value in .*"),
        ({"layout": "whole", "target": "s3://bucket/x"}, "", "layout whole is not possible: expected chunks"),
        ({"layout": "heap"}, "", "expected whole or chunks"),
    ],
)
def test_a_wrong_configuration_is_reported(config: Config, options: Any, extra: str, text: str) -> None:
    with pytest.raises(ConfigurationError, match=text):
        Settings.read(config(extra, **options))


def test_a_targets_address_leads_to_its_store(config: Config) -> None:
    folder = target_store(Settings.read(config(target="/landing/shop")))
    assert isinstance(folder, FolderStore)
    assert folder.path == Path("/landing/shop") / HOST
    path = config("[ssh]\noptions = -i '/a key'\n", target="sftp://cdc@db1:2222/landing/")
    ssh = target_store(Settings.read(path))
    assert isinstance(ssh, OpenSshStore)
    assert (ssh.destination, str(ssh.folder)) == ("cdc@db1", f"/landing/{HOST}")
    assert ssh.options[:4] == ("-P", "2222", "-i", "/a key")
    for wrong in ("sftp://db1/my landing", "sftp://db1/landing*"):
        with pytest.raises(ConfigurationError, match="invalid folder for sftp"):
            target_store(Settings.read(config(target=wrong)))
    with pytest.raises(ConfigurationError, match=r"invalid address of the target.*found ftp://x"):
        target_store(Settings.read(config(target="ftp://x")))


def test_into_a_folder_only_what_is_new_of_a_growing_segment_travels(config: Config, tmp_path: Path) -> None:
    node = Node(tmp_path / "cdc_raw")
    shipper = Shipper(Settings.read(config(layout="whole")))
    node.grows(1, noise(5000))
    shipper.ship()
    node.grows(1, noise(200, 1))
    assert shipper.ship().copied_bytes == 8 + 200
    assert files(tmp_path / "landing" / HOST)["CommitLog-7-1.log"] == node.durable(1)


def test_a_store_that_remembers_small_files_holds_no_large_one(tmp_path: Path) -> None:
    made: list[int] = []
    held: list[int] = []

    class Counting(FolderStore):
        def write(self, name: str, pieces: Iterable[bytes]) -> None:
            kept = list[bytes]()
            for piece in pieces:
                kept.append(piece)
                held.append(len(made) - len(kept))
            super().write(name, kept)

    def pieces() -> Iterator[bytes]:
        for number in range(4):
            made.append(number)
            yield noise(50_000, number)

    store = RememberingStore(Counting(tmp_path))
    store.write("large", pieces())
    assert held == [0, 0, 0, 0], "each piece is handed on before the next is made"
    assert b"".join(store.read("large")) == b"".join(pieces())


@pytest.mark.covers("CAS-CFG-13", "DSX-AGT-07")
def test_it_ships_again_and_again_and_gets_over_what_passes(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "cdc_raw")
    shipper = Shipper(Settings.read(config()))
    rounds: list[float] = []
    stop = threading.Event()
    real = shipper.ship

    def ship() -> Any:
        rounds.append(time.monotonic())
        if len(rounds) == 2:
            raise TransientError("the network is down")
        if len(rounds) == 4:
            stop.set()
        node.finishes(len(rounds), noise(100))
        return real()

    monkeypatch.setattr(shipper, "ship", ship)
    with caplog.at_level(logging.INFO):
        shipper.run(stop)

    assert len(rounds) == 4
    assert all(later - earlier >= 0.1 for earlier, later in pairwise(rounds))
    assert files(tmp_path / "landing" / HOST) == node.wrote
    assert "the network is down" in caplog.text
    assert "copied=1" in caplog.text


def test_it_warns_when_cdc_raw_is_nearly_full(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "cdc_raw")
    node.finishes(1, noise(900_000))
    main(["--config", str(config(cdc_total_space_mib=1)), "--once"])
    assert "is 86% full (0 of 1 MiB)" in caplog.text


def test_a_segment_with_a_broken_header_leaves_cdc_raw_if_there_is_a_folder_for_it(
    config: Config, tmp_path: Path
) -> None:
    node = Node(tmp_path / "cdc_raw")
    node.finishes(1, noise(100))
    node.breaks(1)
    assert main(["--config", str(config()), "--once"]) == 1
    assert node.log(1).exists()
    assert main(["--config", str(config(errors_folder=tmp_path / "errors")), "--once"]) == 1
    assert not node.log(1).exists()
    reason = json.loads((tmp_path / "errors" / "CommitLog-7-1.log.reason.json").read_text())
    assert "is corrupt" in reason["reason"]


def test_two_shippers_of_a_node_do_not_run_at_once(config: Config, tmp_path: Path) -> None:
    Node(tmp_path / "cdc_raw").finishes(1, noise(100))
    path = config()
    command = [sys.executable, "-m", "airflow_cdc_provider.transfer.shipper", "--config", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as first:
        try:
            assert first.stdout is not None
            assert b"copied=1" in first.stdout.readline(), "it runs"
            assert main(["--config", str(path), "--once"]) == 1
        finally:
            first.terminate()
        assert first.wait(30) == 0, "SIGTERM ends it in order"
    assert main(["--config", str(path), "--once"]) == 0


def test_a_missing_folder_ends_it_with_a_remedy(config: Config, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["--config", str(config()), "--once"]) == 2
    assert "run as a user of the group that owns it" in caplog.text


def test_a_target_that_is_no_folder_ends_one_round_with_its_name(
    config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Node(tmp_path / "cdc_raw").finishes(1, noise(100))
    (tmp_path / "landing").write_text("a file")
    assert main(["--config", str(config()), "--once"]) == 1
    assert f"{tmp_path / 'landing'}: Not a directory" in caplog.text


def test_its_sources_are_python_of_the_nodes() -> None:
    """Syntax of 3.9; what of the library came later is kept out by hand."""
    parts = [ROOT / "airflow_cdc_provider" / "exceptions.py"]
    for path in [*parts, *(ROOT / "airflow_cdc_provider" / "transfer").glob("*.py")]:
        text = path.read_text()
        ast.parse(text, feature_version=(3, 9))
        assert "from __future__ import annotations" in text or path.name == "__init__.py"
        for later in ("strict=", "pairwise", "tomllib", "StrEnum", "slots=True", "kw_only=True", "Self"):
            assert later not in text, f"{path.name} uses {later}"
