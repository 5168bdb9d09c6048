"""Audit dependencies and the tree; exit with 1 on a finding without a reason in ``accepted.yaml``.

Usage::

    make audit

============== =========================================================================================
advisories     pins of ``requirements.lock`` against the advisories of the package ``safety-db``
licences       of all that is installed, by its metadata, against licences that Apache-2.0 permits; of the
               jars that the code names as ``accepted.yaml`` lists them: Maven's metadata isn't installed.
               What these jars depend on is only in ``server_kit/jars.sha256``: it is for tests
secrets        all files that Git tracks, by ``detect-secrets``
============== =========================================================================================

The database of advisories is the newest that a package registry has, and old: its date is printed. Newer
advisories need a service; ``pip-audit -r requirements.lock --disable-pip`` asks one.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from tools.pinned import installed

ROOT: Final = Path(__file__).resolve().parents[2]
ACCEPTED: Final = ROOT / "tools" / "audit" / "accepted.yaml"
_PIN: Final = re.compile(r"\b([A-Za-z0-9._-]+)==([0-9][\w.!+-]*)")
_PINNED: Final = ("requirements.lock", "tools/install.lock", "tools/pinned.lock")
_JAR: Final = re.compile(
    r"[\"'`]((?:org|com|io|net|dev|ai|ch|de|software)\.[\w.{}-]+:[\w.{}-]*[A-Za-z}][\w.{}-]*)(?=[:\"'`])"
)
_SOURCES: Final = (
    "airflow_cdc_provider",
    "server_kit",
    "tools",
    "demo",
    "benchmarks",
    "tests",
    "dags_examples",
)
_PERMISSIVE: Final = re.compile(
    r"\s*(\(?(3-Clause )?(MIT(-0)?( License)?|Apache([ -]2\.0| Software License)?( WITH LLVM-exception)?"
    r"|BSD( License|-[23]-Clause)?|0BSD|ISC( License \(ISCL\))?|PSF-2\.0|Python Software Foundation License"
    r"|Zlib|CC0-1\.0|The Unlicense \(Unlicense\)|Unlicense)\)?(\s+(AND|OR)\s+|$))+"
)
_AMBIGUOUS: Final = ("OSI Approved", "DFSG approved")


def main() -> int:
    """Print all findings; return the exit code."""
    accepted = yaml.safe_load(ACCEPTED.read_text())
    found = {
        "advisories": advisories(pins()),
        "licences": licences(metadata.distributions()),
        "jars": jars(),
        "secrets": secrets(),
    }
    failed = [title for title, own in found.items() if report(title, dict(own), accepted[title])]
    return 1 if failed else 0


def report(title: str, found: Mapping[str, str], accepted: Mapping[str, str]) -> bool:
    """Print what isn't accepted, and what is accepted and isn't found; return whether there is any."""
    new = {name: text for name, text in found.items() if not any(fnmatch(name, known) for known in accepted)}
    stale = [known for known in accepted if not any(fnmatch(name, known) for name in found)]
    print(f"{title}: {len(found)} findings, {len(found) - len(new)} accepted")
    for name, text in sorted(new.items()):
        print(f"  {name}: {text}")
    for known in stale:
        print(f"  {known}: not found any more; remove it from {ACCEPTED.relative_to(ROOT)}")
    return bool(new or stale)


def pins() -> dict[str, str]:
    """Return the versions of all pinned packages by their names."""
    text = "\n".join((ROOT / name).read_text() for name in _PINNED)
    return {canonicalize_name(name): version for name, version in _PIN.findall(text)}


def advisories(pinned: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the advisories for pinned versions, by package and id."""
    database = json.loads((installed() / "safety_db" / "insecure_full.json").read_text())
    moment = datetime.fromtimestamp(database.pop("$meta")["timestamp"], UTC)
    print(f"{len(pinned)} pins; advisories of safety-db, which ends on {moment:%Y-%m-%d}")
    by_name: dict[str, Any] = {canonicalize_name(name): found for name, found in database.items()}
    for name, version in sorted(pinned.items()):
        for one in by_name.get(name, ()):
            if any(_contains(spec, version) for spec in one["specs"]):
                yield f"{name} {one['id']}", f"{version} is in {one['v']}: {one['advisory'][:200]}"


def _contains(spec: str, version: str) -> bool:
    try:
        return SpecifierSet(spec).contains(version, prereleases=True)
    except InvalidSpecifier:
        return True  # a person must look


def licences(distributions: Iterable[metadata.Distribution]) -> Iterator[tuple[str, str]]:
    """Yield distributions whose licence isn't a permissive one, by name."""
    for one in distributions:
        name = canonicalize_name(one.name)
        text = _licence(one.metadata)
        if name != "airflow-cdc-provider" and not _PERMISSIVE.fullmatch(text):
            yield name, text or "no licence in its metadata"


def _licence(found: Any) -> str:
    """Return a distribution's licence: an expression, or its classifiers, or the first line of a text."""
    classifiers = [
        name.split(" :: ")[-1] for name in found.get_all("Classifier") or [] if "License ::" in name
    ]
    named = [name for name in classifiers if name not in _AMBIGUOUS]
    text = found.get("License-Expression") or " OR ".join(named) or found.get("License") or ""
    return str(text).strip().partition("\n")[0][:200]


def jars() -> Iterator[tuple[str, str]]:
    """Yield the artifacts of Maven that the code names, by group and artifact: their licences are listed."""
    for path in (path for name in _SOURCES for path in ROOT.glob(f"{name}/**/*.py")):
        for name in _JAR.findall(path.read_text()):
            yield name, f"named in {path.relative_to(ROOT)}; look up its licence"


def secrets() -> Iterator[tuple[str, str]]:
    """Yield texts in tracked files that look like secrets, by file and kind."""
    sys.path.insert(0, str(installed()))
    from detect_secrets import SecretsCollection
    from detect_secrets.settings import default_settings

    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    found = SecretsCollection(root=str(ROOT))
    with default_settings():
        for name in listed.decode().split("\0"):
            if name and _is_text(ROOT / name):
                found.scan_file(name)
    for path, one in found:
        yield f"{path} {one.type}", f"line {one.line_number}"


def _is_text(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        return b"\0" not in file.read(8000)


if __name__ == "__main__":
    sys.exit(main())
