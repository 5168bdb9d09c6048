"""Refuse words that the project has replaced by the field's own: prose, identifiers and file names.

Reads every tracked ``*.py`` and ``*.md`` file. Identifiers are split at underscores and capitals, so that
``RowsTold`` and ``rows_told`` are findings too; a phrase may continue on the next line. The terms to use are
defined in docs/glossary.md.

Usage: ``python -m tools.vocabulary [FILE ...]``; without files, all tracked ones. Prints
``file:line: word: use ...`` for each finding, and exits with 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise, product
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent

REPLACED: Final[Mapping[str, str]] = {
    "told|tell|tells|telling": "report, return, log, notify; distinguish for 'tell apart'",
    "untold": "unreported, not reported",
    "anew": "again, re-created, from the start",
    "beside the stream": "incremental snapshot",
    "beside": "next to, in addition to",
    "set|sets|setting apart": "quarantine; dead letters of a topic",
    "apart": "separate, grouped by, distinguished",
    "doubt|doubts|doubted|doubtful|undoubted": "unresolved, unresolved keys",
    "let|lets|letting go of": "release, delete, expire",
    "pass|passes|passed|passing over": "skip",
    "wish|wishes|wished": "request",
    "made up": "synthetic; consists of",
    "begun": "started",
    "the|its|a begin": "start",
    "begin on": "from the start",
    "hear|hears|heard|hearing": "receive; on_batch_read and the like for call-backs",
    "go|goes|going|gone on with": "resume, continue",
    "stand|stands|stood|standing beside": "is stored next to",
    "side table|tables": "tombstone table",
    "statics|unstatic": "static columns",
    "shaken": "affected",
    "revisit|revisited|revisits": "rows to rewrite",
    "cutter": "assembler",
    "as told": "as reported",
    "at the most": "at most",
}
"""Word or phrase, with ``|`` between the forms of one of its words, and what to use instead."""

IGNORED: Final = (
    "docs/features.md",  # generated; titles come from the ledger
    "docs/ledger.yaml",
    "tests/fixtures/*",  # recordings
    "tools/vocabulary.py",
    "tests/unit/test_vocabulary.py",
    "*_pb2.py",  # generated
)

PLAIN: Final[Mapping[str, str]] = {
    r"\.tell\(": "Python's own method of files",
    r"\bBEGIN\b": "name of an event or statement",
    r"\bapart\s+from\b": "plain English for 'except'",
    r"(?i)\b(?:a|one|first|second|single)\s+pass\s+over\b": "a noun: reading data once",
}
"""Expressions whose words are no findings, each with the reason."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# What may stand between two words of one phrase: ends of lines, marks of comments, quotes, underscores.
_GAP: Final = re.compile(r"[\s_#*>`\"'-]*")


@dataclass(frozen=True)
class Finding:
    """A word that must be replaced.

    Args:
        path: The file, from the project's root.
        line: Line of the word, from 1; 0 for the file's own name.
        found: The word or phrase as the file has it, in lower case.
        instead: What to use.
    """

    path: str
    line: int
    found: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found}: use {self.instead}"


def _expand(replaced: Mapping[str, str]) -> Mapping[str, Sequence[tuple[tuple[str, ...], str]]]:
    """Return the phrases by their first word, the longest first."""
    phrases: dict[str, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
    for pattern, instead in replaced.items():
        for words in product(*(word.split("|") for word in pattern.split())):
            phrases[words[0]].append((words, instead))
    return {first: sorted(found, key=lambda one: -len(one[0])) for first, found in phrases.items()}


_PHRASES: Final = _expand(REPLACED)


def check_text(path: str, text: str) -> Iterator[Finding]:
    """Yield the findings of one file's text.

    Args:
        path: Name of the file, for the findings.
        text: Its content.
    """
    for expression in PLAIN:
        text = re.sub(expression, lambda match: re.sub(r"\w", "0", match[0]), text)
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for words, offset, instead in _matches(text):
        yield Finding(path, bisect_right(starts, offset), " ".join(words), instead)


def check_name(path: str) -> Iterator[Finding]:
    """Yield the findings of a file's own name."""
    for words, _, instead in _matches(path):
        yield Finding(path, 0, " ".join(words), instead)


def _matches(text: str) -> Iterator[tuple[tuple[str, ...], int, str]]:
    """Yield each phrase in a text with its offset; of two that overlap, only the longer one."""
    words = list(_WORD.finditer(text))
    joined = [_GAP.fullmatch(text, one.end(), two.start()) is not None for one, two in pairwise(words)]
    end = 0
    for index, word in enumerate(words):
        if index < end:
            continue
        for phrase, instead in _PHRASES.get(word[0].lower(), ()):
            last = index + len(phrase)
            if all(joined[index : last - 1]) and phrase == tuple(w[0].lower() for w in words[index:last]):
                yield phrase, word.start(), instead
                end = last
                break


def tracked_files() -> list[str]:
    """List the tracked files that are checked, from the project's root."""
    command = ["git", "ls-files", "-z", "--", "*.py", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.split("\0") if path and is_checked(path)]


def is_checked(path: str) -> bool:
    """Return whether a file is checked at all."""
    return not any(fnmatch(path, ignored) for ignored in IGNORED)


def main(arguments: Sequence[str]) -> int:
    """Check files and print the findings.

    Args:
        arguments: Files, from the project's root; none for all tracked ones.

    Returns:
        The exit code: 1 if there are findings.
    """
    count = 0
    for path in arguments or tracked_files():
        findings = [*check_name(path), *check_text(path, (ROOT / path).read_text())]
        for finding in findings:
            print(finding)
        count += len(findings)
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
