"""Signals in files: none is lost and none is followed twice, whenever a job dies."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest

from airflow_cdc_provider.exceptions import ConfigurationError
from airflow_cdc_provider.signals.files import FileChannel, FolderChannel, send
from airflow_cdc_provider.signals.signal import MalformedSignal, Signal
from tests.security.hostile_files import OTHER_USER


def lines(*messages: str) -> str:
    return "".join(json.dumps({"type": "log", "data": {"message": m}}) + "\n" for m in messages)


def received(channel: FileChannel | FolderChannel) -> list[str]:
    return [one.data["message"] if isinstance(one, Signal) else "?" for one in channel.receive()]


def test_a_file_is_taken_once_its_signals_are_done(tmp_path: Path) -> None:
    file = tmp_path / "signals.txt"
    channel = FileChannel(file)
    assert received(channel) == []
    file.write_text(lines("a", "b") + "\n{\n")
    assert received(channel) == ["a", "b", "?"]
    channel.done()
    assert received(channel) == []
    assert list(tmp_path.iterdir()) == []


def test_what_a_dead_job_took_comes_again_with_the_same_ids_before_what_is_new(tmp_path: Path) -> None:
    file = tmp_path / "signals[1]*.txt"
    file.write_text(lines("a", "b"))
    first = FileChannel(file).receive()
    file.write_text(lines("c"))
    again = FileChannel(file).receive()
    assert [one.id for one in again[:2]] == [one.id for one in first]
    assert len({one.id for one in again}) == 3


def test_a_line_written_to_what_was_taken_is_not_lost(tmp_path: Path) -> None:
    file = tmp_path / "signals.txt"
    with file.open("w") as held:
        held.write(lines("a"))
        held.flush()
        channel = FileChannel(file)
        first = channel.receive()
        held.write(lines("b"))
        held.flush()
        channel.done()
        again = channel.receive()
    assert [one.id for one in again][:1] == [one.id for one in first]
    assert len(again) == 2
    channel.done()
    assert channel.receive() == []


def test_a_folder_gives_signals_in_the_order_in_which_they_were_sent(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "yet"
    channel = FolderChannel(folder)
    assert received(channel) == []
    ids = [send(folder, "log", {"message": m}) for m in "abc"]
    send(folder, "log", {"message": "d"}, "own")
    (folder / "broken.json").write_text("{")
    (folder / "half.part").write_text("{")
    found = channel.receive()
    assert [one.id for one in found] == [*ids, "own", "broken"]
    assert isinstance(found[-1], MalformedSignal)
    later = send(folder, "log", {})
    channel.done()
    assert [one.id for one in channel.receive()] == [later]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_written_to_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="can't write a signal to"):
        send(tmp_path / "file" / "folder", "log", {})


def test_a_file_of_something_else_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "signals.txt"
    with file.open("wb") as large:
        large.truncate((8 << 20) + 1)
    channel = FileChannel(file)
    (found,) = channel.receive()
    assert isinstance(found, MalformedSignal)
    assert "more than 8388608 bytes" in found.reason
    channel.done()
    assert not os.listdir(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("channel", [FileChannel, FolderChannel])
def test_a_file_that_may_not_be_read_is_ignored_and_the_next_one_is_read(
    channel: type[FileChannel | FolderChannel],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        names = ["a.taken-1", "a.taken-2"] if channel is FileChannel else ["1.json", "2.json"]
        for file in names:
            Path(name, file).write_text(lines("b"))
        Path(name, names[0]).chmod(0o200)
        opened = channel(Path(name, "a") if channel is FileChannel else Path(name))
        os.seteuid(OTHER_USER)
        try:
            (unread, _) = arrived = opened.receive()
            opened.done()
        finally:
            os.seteuid(0)
        assert [type(one) for one in arrived] == [MalformedSignal, Signal]
        assert unread.id == "1"
        assert list(Path(name).iterdir()) == []
