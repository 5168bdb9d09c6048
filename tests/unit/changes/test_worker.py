"""What Python workers are spared between tasks."""

from __future__ import annotations

import importlib
import sys
import zipfile
import zipimport
from pathlib import Path

import pytest

from airflow_cdc_provider.changes.worker import drop_zip_importers


def test_an_archive_is_read_once_and_still_imported_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("in_archive_one.py", "x = 1")
        file.writestr("in_archive_two.py", "x = 2")
    monkeypatch.syspath_prepend(str(archive))
    assert importlib.import_module("in_archive_one").x == 1
    read = []
    reader = zipimport._read_directory  # type: ignore[attr-defined]

    def reading(path: str) -> object:
        read.append(path)
        return reader(path)

    monkeypatch.setattr(zipimport, "_read_directory", reading)

    drop_zip_importers()
    importlib.invalidate_caches()
    assert importlib.import_module("in_archive_two").x == 2

    assert str(archive) not in read
    assert str(archive) in sys.path_importer_cache, "used again"
