"""One transfer: new and grown segments from a source to a target, and what was captured cleared away.

Every step can be repeated, and nothing is kept but what lies in source and target: a transfer that was killed
is made good by the next one. Segments are brought in parallel; one that fails doesn't keep the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput
from airflow_cdc_provider.transfer.disposal import CommitLogTransfer
from airflow_cdc_provider.transfer.errors import NOTE_SUFFIX, tells_loss, write_note
from airflow_cdc_provider.transfer.layout import Source, Target, Vanished
from airflow_cdc_provider.transfer.pace import Pace
from airflow_cdc_provider.transfer.segments import Index, Segment
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments

AfterCommit = Literal["keep", "delete", "archive"]
AfterTransfer = Literal["keep", "delete"]
AFTER_COMMIT: Final = ("keep", "delete", "archive")
AFTER_TRANSFER: Final = ("keep", "delete")

_DROPPED: Final = "the node dropped it to make room before its end was brought (cdc_block_writes: false)"

_log = logging.getLogger(__name__)


@dataclass
class TransferCounts:
    """What a transfer did.

    ``errors`` are segments set apart, ``failed`` those that a next try may bring, and ``lost`` those that the
    node dropped before their end was brought.
    """

    copied: int = 0
    copied_bytes: int = 0
    unchanged: int = 0
    vanished: int = 0
    deleted: int = 0
    archived: int = 0
    errors: int = 0
    failed: int = 0
    lost: int = 0


def never(segment: Segment) -> bool:
    """Tell of no segment that it was captured."""
    del segment
    return False


@dataclass(frozen=True)
class Transfer:
    """Brings one node's segments from a source to a target.

    Args:
        source: Where they come from; None to clear away at the target only.
        target: Where they go to.
        after_transfer: ``delete`` frees finished segments at the source once they stand at the target.
        after_commit: What becomes of captured segments, at both ends.
        passed: Tells whether the connector's stored offset calls a segment read to its end, or not wanted.
        archive: Where captured segments go to, for ``archive``.
        errors: Where segments go to that can't be brought; they and the reason are kept there.
        retry_errors: Bring the segments of ``errors`` to the target as they are; capture then reads what is
            sound of them, and sets the rest apart.
        transfer_class: Takes captured segments over, and hears of errors. Needs a target of whole segments
            in a folder.
        parallel: Segments brought at once.
        pace: Counts and holds up what travels.
    """

    source: Source | None
    target: Target
    after_transfer: AfterTransfer = "keep"
    after_commit: AfterCommit = "keep"
    passed: Callable[[Segment], bool] = never
    archive: WholeSegments | None = None
    errors: WholeSegments | None = None
    retry_errors: bool = False
    transfer_class: CommitLogTransfer | None = None
    parallel: int = 1
    pace: Pace = field(default_factory=Pace)

    def run(self) -> TransferCounts:
        """Transfer once.

        Raises:
            TransientError: Another transfer of this node runs, or a store can't be reached.
            ConfigurationError: A store refuses us.
            OSError: A folder can't be written to.
        """
        counts = TransferCounts()
        if self.source is not None:
            with self.target.store.exclusive():
                for place in (self.target, self.errors, self.archive):
                    if place is not None:
                        place.store.sweep()
                if self.retry_errors and self.errors is not None:
                    self._bring_errors(self.errors, counts)
                self._bring_all(self.source, counts)
        if self.after_commit != "keep":
            self._clear_captured(counts)
        counts.copied_bytes = self.pace.travelled_bytes
        return counts

    def _bring_all(self, source: Source, counts: TransferCounts) -> None:
        landed = self.target.landed()
        apart = self.errors.landed() if self.errors is not None else {}
        listed = source.segments()
        wanted = []
        for segment in listed:
            here = landed.get(segment.name)
            if (segment.complete or segment.lost) and self.passed(segment):
                if self.after_commit != "keep":
                    source.remove(segment)
                    counts.deleted += 1
            elif not segment.readable:
                # No changes yet; or we were killed while removing it, and the copy stands.
                if here is not None and here.complete and self.after_transfer == "delete":
                    source.remove(segment)
            elif here is not None and (here.index == segment.index or (segment.lost and here.complete)):
                counts.unchanged += 1  # of a lost one a finished copy was brought from the errors folder
                self._free(source, segment, counts)
            elif segment.name in apart and apart[segment.name].index == segment.index:
                self._free(source, segment, counts)
            else:
                wanted.append(segment)
        self.pace.expect(len(wanted))
        with ThreadPoolExecutor(max(self.parallel, 1), "transfer") as threads:
            outcomes = threads.map(lambda segment: (segment, self._bring(source, segment)), wanted)
            for segment, outcome in outcomes:
                self._settle(source, segment, outcome, counts)
        for stump in self._stumps(listed, landed):
            here = landed.get(stump.name)
            if stump.name not in apart or here is not None:  # both: we were killed while giving it up
                self._give_up(source, stump, counts)

    def _stumps(self, listed: Sequence[Segment], landed: Mapping[str, Segment]) -> list[Segment]:
        """Find segments that the node dropped to make room, read or not (``cdc_block_writes: false``).

        Only finished segments are removed by a transfer, and a node finishes one before it fills the next. So
        what still grew when it was last seen, and is gone while later ones are there, has lost its end.
        """
        names = {segment.name for segment in listed}
        newest = max((segment.id for segment in listed), default=0)
        gone = [
            segment
            for segment in landed.values()
            if segment.index is not None
            and not (segment.complete or segment.lost or self.passed(segment))
            and segment.name not in names
            and segment.id < newest
        ]
        return [
            *gone,
            *(segment for segment in listed if segment.lost and not self._retried(segment, landed)),
        ]

    def _retried(self, stump: Segment, landed: Mapping[str, Segment]) -> bool:
        """Tell whether capture reads, or has read, what there is of a stump."""
        here = landed.get(stump.name)
        return self.passed(stump) or (here is not None and here.complete)

    def _give_up(self, source: Source, stump: Segment, counts: TransferCounts) -> None:
        _log.error("segment %s is lost: %s", stump.name, _DROPPED)
        counts.lost += 1
        if self.target.give_up(stump) or self.errors is None:
            return
        here = self.target.landed().get(stump.name)
        if here is not None and isinstance(self.target, WholeSegments):
            self.errors.bring(here, self.target, here.size_bytes, self.pace)
            self._note(stump, _DROPPED, counts)
            self.target.remove(here)
        else:
            self._note(stump, _DROPPED, counts)
        if stump.lost and self.after_transfer == "delete":
            source.remove(stump)

    def _bring(self, source: Source, segment: Segment) -> CdcError | Vanished | None:
        """Bring one segment; return what kept it."""
        try:
            self.target.bring(segment, source, source.durable_bytes(segment), self.pace)
        except ConfigurationError:
            raise
        except (CdcError, Vanished) as error:
            return error
        self.pace.finished_one()
        return None

    def _settle(
        self, source: Source, segment: Segment, outcome: CdcError | Vanished | None, counts: TransferCounts
    ) -> None:
        if outcome is None:
            counts.copied += 1
            self._free(source, segment, counts)
        elif isinstance(outcome, Vanished):
            counts.vanished += 1
        elif isinstance(outcome, CorruptInput):
            counts.errors += 1
            self._set_apart(source, segment, outcome, counts)
        else:
            counts.failed += 1
            _log.warning("segment %s was not brought, the next transfer will try: %s", segment.name, outcome)

    def _free(self, source: Source, segment: Segment, counts: TransferCounts) -> None:
        if segment.complete and self.after_transfer == "delete":
            source.remove(segment)
            counts.deleted += 1

    def _set_apart(
        self, source: Source, segment: Segment, error: CorruptInput, counts: TransferCounts
    ) -> None:
        """Keep a segment that can't be brought, and why; a growing one may still mend."""
        _log.error("segment %s is set apart: %s", segment.name, error)
        if self.errors is None:
            return
        copy = None
        if segment.complete and isinstance(self.errors.store, FolderStore):
            try:
                self.errors.bring(segment, source, segment.size_bytes, self.pace)
                copy = self.errors.store.path / segment.name
            except (CorruptInput, Vanished) as unreadable:
                _log.error("nor can its bytes be kept: %s", unreadable)
        self._note(segment, str(error), counts)
        if copy is not None:
            self._free(source, segment, counts)

    def _note(self, segment: Segment, reason: str, counts: TransferCounts) -> None:
        """Write beside a segment that was set apart why it was, and tell the user's class."""
        if self.errors is None:
            return
        write_note(self.errors.store, segment, reason, lost=reason == _DROPPED)
        if self.transfer_class is not None:
            kept = isinstance(self.errors.store, FolderStore) and self.errors.store.path / segment.name
            try:
                self.transfer_class.on_error(kept if kept and kept.exists() else None, reason)
            except Exception:  # noqa: BLE001  # the user's own class: the other segments don't wait for it
                _log.exception("%s failed on %s", type(self.transfer_class).__name__, segment.name)
                counts.failed += 1

    def _bring_errors(self, errors: WholeSegments, counts: TransferCounts) -> None:
        for segment in errors.segments():
            if self.passed(segment):
                # Capture wouldn't read it there, and what is captured is cleared away: this is the only copy.
                _log.warning(
                    "segment %s stays in the errors folder: it lies before the stored offset", segment.name
                )
                continue
            self.target.bring(_finished(segment), errors, segment.size_bytes, self.pace)
            errors.remove(segment)
            if not tells_loss(errors.store, segment.name):  # capture marks the tables by the note
                errors.store.remove(segment.name + NOTE_SUFFIX)
            counts.copied += 1

    def _clear_captured(self, counts: TransferCounts) -> None:
        if not isinstance(self.target, WholeSegments):
            return
        for segment in self.target.segments():
            if (segment.complete or not segment.readable) and self.passed(segment):
                self._dispose(self.target, segment, counts)

    def _dispose(self, target: WholeSegments, segment: Segment, counts: TransferCounts) -> None:
        if segment.readable:
            if self.after_commit == "archive" and self.archive is not None:
                self.archive.bring(segment, target, segment.size_bytes, Pace())
                counts.archived += 1
            if self.transfer_class is not None and isinstance(target.store, FolderStore):
                index = target.store.path / segment.index_name if segment.index is not None else None
                try:
                    self.transfer_class.on_success(target.store.path / segment.name, index)
                except Exception:  # noqa: BLE001  # the user's own class: whatever it raises keeps the segment
                    _log.exception("%s failed on %s", type(self.transfer_class).__name__, segment.name)
                    counts.failed += 1
                    return
        target.remove(segment)
        counts.deleted += 1


def _finished(segment: Segment) -> Segment:
    """Say of a stump that there is no more of it, so that capture reads it to its end."""
    if segment.index is None or segment.complete:
        return segment
    end = segment.index.end
    return replace(segment, index=Index(end, True, f"{end}\nCOMPLETED"))
