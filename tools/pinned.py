"""Installs tools that few need, by the hashes of ``tools/pinned.lock``, into a folder of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINS = ROOT / "tools" / "pinned.lock"


def installed() -> Path:
    """Return a folder with the pinned tools for ``PYTHONPATH``; what they require is in the environment."""
    folder = ROOT / "build" / "tools"
    stamp = folder / PINS.name
    if not stamp.is_file() or stamp.read_bytes() != PINS.read_bytes():
        uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", sys.executable]
        pinned = ["--require-hashes", "--no-deps", "--no-build", "--target", str(folder), "-r", str(PINS)]
        subprocess.run([*uv, *pinned], check=True)
        stamp.write_bytes(PINS.read_bytes())
    return folder
