"""Build ``dist/cdc-shipper.pyz``: the part of the package that ships segments, as one file for any Python.

Usage: ``python tools/build_shipper.py [FILE]``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipapp
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "airflow_cdc_provider"
PARTS = (
    "__init__.py",
    "exceptions.py",
    "logs.py",
    "masking.py",
    "regular_files.py",
    "secret_values.py",
    "transfer",
)


def build(target: Path) -> Path:
    """Write the program; return its path."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        inside = Path(folder) / PACKAGE
        inside.mkdir()
        for part in PARTS:
            source = ROOT / PACKAGE / part
            if source.is_dir():
                shutil.copytree(source, inside / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, inside / part)
        (Path(folder) / "__main__.py").write_text(
            f"import sys\n\nfrom {PACKAGE}.transfer.shipper import main\n\nsys.exit(main())\n"
        )
        zipapp.create_archive(folder, target, interpreter="/usr/bin/env python3", compressed=True)
    return target


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "cdc-shipper.pyz"))
