"""A distribution with the example source, as a user would install it."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

SOURCE = Path(__file__).parent / "jsonl_source"
MODULES = ("options.py", "plugin.py", "source.py", "reader.py", "codec.py")
ENTRY_POINTS = """\
[airflow_cdc_provider.sources]
jsonl = jsonl_source.plugin:PLUGIN
"""


def build_distribution(folder: Path) -> Path:
    """Write the distribution to a zip file, which Python and Spark import like a wheel."""
    path = folder / "jsonl_source-1.0.zip"
    with ZipFile(path, "w") as archive:
        for name in ("__init__.py", *MODULES):
            archive.write(SOURCE / name, f"jsonl_source/{name}")
        archive.writestr("jsonl_source-1.0.dist-info/METADATA", "Name: jsonl-source\nVersion: 1.0\n")
        archive.writestr("jsonl_source-1.0.dist-info/entry_points.txt", ENTRY_POINTS)
    return path
