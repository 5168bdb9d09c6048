"""One transfer: copies new and grown segments from a source to a target, and disposes of captured ones.

Every step is idempotent, and there is no state except the files of source and target: the next transfer
completes a killed one. Segments are copied in parallel; a failed one doesn't block the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from airflow_cdc_provider.exceptions import CdcError, ConfigurationError, CorruptInput
from airflow_cdc_provider.logs import logger
from airflow_cdc_provider.regular_files import LARGEST_SEGMENT_BYTES
from airflow_cdc_provider.transfer.disposal import CommitLogTransfer
from airflow_cdc_provider.transfer.errors import NOTE_SUFFIX, reports_loss, write_note
from airflow_cdc_provider.transfer.layout import Source, Target, Vanished, equal_start
from airflow_cdc_provider.transfer.pace import Pace
from airflow_cdc_provider.transfer.segments import Index, Segment
from airflow_cdc_provider.transfer.stores import FolderStore
from airflow_cdc_provider.transfer.whole import WholeSegments
from airflow_cdc_provider.transfer.whole_sections import durable_marks

AfterCommit = Literal["keep", "delete", "archive"]
AfterTransfer = Literal["keep", "delete"]
AFTER_COMMIT: Final = ("keep", "delete", "archive")
AFTER_TRANSFER: Final = ("keep", "delete")

_DROPPED: Final = (
    "the node dropped it to free space before it was completely copied (cdc_block_writes: false)"
)

_BLOCKING: Final = (ConfigurationError, OSError)
"""Errors of a segment that are raised once all others are copied: retries of it don't help."""

_log = logger(__name__)


@dataclass
class TransferCounts:
    """Counts of a transfer.

    ``errors`` are quarantined segments, ``failed`` those that the next try may copy, and ``lost`` those that
    the node dropped before they were completely copied.
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
    """Return that no segment was captured."""
    del segment
    return False


@dataclass(frozen=True)
class Transfer:
    """Copies one node's segments from a source to a target.

    Args:
        source: The source; None to only dispose of captured segments of the target.
        target: The target.
        after_transfer: ``delete`` removes finished segments from the source once the target has them.
        after_commit: What to do with captured segments, at both ends.
        is_captured: Returns whether the connector's stored offset counts a segment as captured to its end, or
            as skipped.
        archive: Target of captured segments, for ``archive``.
        errors: Target of segments that can't be copied, and of the reasons.
        moves_lost: Whether the stored part of a lost segment is moved to ``errors``. A shipper leaves it:
            who writes to the target would else fill the node's disk.
        retry_errors: Copy the segments of ``errors`` to the target unchanged; capture then reads their intact
            part, and quarantines the rest.
        transfer_class: Receives captured segments and errors. Requires a target of whole segments in a
            folder.
        parallel: The number of segments copied at once.
        pace: Counts and throttles the copied bytes.
    """

    source: Source | None
    target: Target
    after_transfer: AfterTransfer = "keep"
    after_commit: AfterCommit = "keep"
    is_captured: Callable[[Segment], bool] = never
    archive: WholeSegments | None = None
    errors: WholeSegments | None = None
    moves_lost: bool = True
    retry_errors: bool = False
    transfer_class: CommitLogTransfer | None = None
    parallel: int = 1
    pace: Pace = field(default_factory=Pace)

    def run(self) -> TransferCounts:
        """Transfer once.

        Raises:
            TransientError: Another transfer of this node is running, or a store can't be reached.
            ConfigurationError: A store denies access.
            OSError: A folder isn't writable.
        """
        counts = TransferCounts()
        try:
            if self.source is not None:
                with self.target.store.exclusive():
                    for directory in (self.target, self.errors, self.archive):
                        if directory is not None:
                            directory.store.sweep()
                    if self.retry_errors and self.errors is not None:
                        self._bring_errors(self.errors, counts)
                    self._bring_all(self.source, counts)
        finally:  # what was captured is cleared, whatever keeps the others from being copied
            if self.after_commit != "keep":
                self._clear_captured(counts)
        counts.copied_bytes = self.pace.travelled_bytes
        return counts

    def _bring_all(self, source: Source, counts: TransferCounts) -> None:
        landed = self.target.landed()
        quarantined = self.errors.landed() if self.errors is not None else {}
        listed = source.segments()
        to_copy = []
        for segment in listed:
            here = landed.get(segment.name)
            if (segment.complete or segment.lost) and self.is_captured(segment):
                if self.after_commit != "keep":
                    source.remove(segment)
                    counts.deleted += 1
            elif not segment.readable:
                # No changes yet; or an earlier transfer was killed while removing it, after the copy.
                removing = here is not None and here.complete and self.after_transfer == "delete"
                if (
                    removing
                    and self._has(self.target, source, segment, here)
                    and self._was_filled(source, segment)
                ):
                    source.remove(segment)
            elif (
                here is not None
                and (here.index == segment.index or (segment.lost and here.complete))
                and not self._differs(self.target, source, segment, here)
            ):
                counts.unchanged += 1  # a lost one may have a finished copy from the errors folder
                self._free(source, segment, counts)
            elif (
                self.errors is not None
                and (bad := quarantined.get(segment.name)) is not None
                and bad.index == segment.index
                and not self._differs(self.errors, source, segment, bad)
            ):
                self._free(source, segment, counts)
            else:
                to_copy.append(segment)
        self.pace.expect(len(to_copy))
        with ThreadPoolExecutor(max(self.parallel, 1), "transfer") as threads:
            outcomes = list(threads.map(lambda segment: (segment, self._bring(source, segment)), to_copy))
            for segment, outcome in outcomes:
                self._settle(source, segment, outcome, counts)
        for lost in self._lost_segments(listed, landed):
            here = landed.get(lost.name)
            if (
                lost.name not in quarantined or here is not None
            ):  # both: a transfer was killed while giving it up
                with self._counting_failure(lost, counts):
                    self._give_up(source, lost, counts)
        for _, outcome in outcomes:
            if isinstance(outcome, _BLOCKING):
                raise outcome

    def _lost_segments(self, listed: Sequence[Segment], landed: Mapping[str, Segment]) -> list[Segment]:
        """Find segments that the node dropped to free space, read or not (``cdc_block_writes: false``).

        A transfer only removes finished segments, and a node finishes one before it fills the next. So a
        segment that was still growing when it was last listed, and is missing while later ones exist, has
        lost its end.
        """
        names = {segment.name for segment in listed}
        newest = max((segment.id for segment in listed), default=0)
        dropped = [
            segment
            for segment in landed.values()
            if segment.index is not None
            and not (segment.complete or segment.lost or self.is_captured(segment))
            and segment.name not in names
            and segment.id < newest
        ]
        return [
            *dropped,
            *(segment for segment in listed if segment.lost and not self._retried(segment, landed)),
        ]

    def _retried(self, lost: Segment, landed: Mapping[str, Segment]) -> bool:
        """Return whether capture reads, or has read, the stored part of a lost segment."""
        here = landed.get(lost.name)
        return self.is_captured(lost) or (here is not None and here.complete)

    def _give_up(self, source: Source, lost: Segment, counts: TransferCounts) -> None:
        _log.error("segment %s is lost: %s", lost.name, _DROPPED)
        counts.lost += 1
        if self.target.give_up(lost) or self.errors is None or not self.moves_lost:
            return
        here = self.target.landed().get(lost.name)
        if here is not None and isinstance(self.target, WholeSegments):
            if here.size_bytes <= LARGEST_SEGMENT_BYTES:
                self.errors.bring(here, self.target, here.size_bytes, self.pace)
            self._note(lost, _DROPPED, counts)
            self.target.remove(here)
        else:
            self._note(lost, _DROPPED, counts)
        if lost.lost and self.after_transfer == "delete":
            source.remove(lost)

    def _bring(self, source: Source, segment: Segment) -> CdcError | Vanished | OSError | None:
        """Copy one segment; return the error, if any."""
        try:
            self.target.bring(segment, source, source.durable_bytes(segment), self.pace)
        except (CdcError, Vanished, OSError) as error:
            return error
        self.pace.finished_one()
        return None

    def _settle(
        self,
        source: Source,
        segment: Segment,
        outcome: CdcError | Vanished | OSError | None,
        counts: TransferCounts,
    ) -> None:
        if outcome is None:
            counts.copied += 1
            self._free(source, segment, counts)
        elif isinstance(outcome, Vanished):
            counts.vanished += 1
        elif isinstance(outcome, CorruptInput):
            counts.errors += 1
            self._quarantine(source, segment, outcome, counts)
        else:
            counts.failed += 1
            _log.warning("segment %s was not copied, the next transfer will retry: %s", segment.name, outcome)

    def _differs(self, target: Target, source: Source, segment: Segment, here: Segment) -> bool:
        """Return whether a segment that may be removed at the source isn't the same at the target."""
        removable = segment.complete and self.after_transfer == "delete"
        return removable and not self._has(target, source, segment, here)

    def _was_filled(self, source: Source, segment: Segment) -> bool:
        """Return whether a segment has a section: what the node hasn't filled yet can be predicted."""
        finished = replace(segment, index=Index(0, True, ""))
        try:
            marks = durable_marks(lambda begin, end: b"".join(source.read(segment, begin, end)), finished)
            first, second = next(marks), next(marks, None)
        except (CdcError, Vanished, OSError):
            return False
        return second is not None and second.position > first.position

    def _has(self, target: Target, source: Source, segment: Segment, here: Segment | None) -> bool:
        size = segment.size_bytes
        try:
            same = here is not None and size == here.size_bytes and equal_start(target, source, segment, size)
        except (CdcError, Vanished, OSError) as error:
            _log.warning("segment %s can't be compared with its copy: %s", segment.name, error)
            return False
        if not same:
            _log.error("segment %s is kept: its copy differs from it, or can't be read", segment.name)
        return same

    def _free(self, source: Source, segment: Segment, counts: TransferCounts) -> None:
        if segment.complete and self.after_transfer == "delete":
            source.remove(segment)
            counts.deleted += 1

    def _quarantine(
        self, source: Source, segment: Segment, error: CorruptInput, counts: TransferCounts
    ) -> None:
        """Store a segment that can't be copied, and the reason; a growing one may still recover."""
        _log.error("segment %s is quarantined: %s", segment.name, error)
        if self.errors is None:
            return
        copy = None
        sound = segment.complete and segment.size_bytes <= LARGEST_SEGMENT_BYTES
        if sound and isinstance(self.errors.store, FolderStore):
            try:
                self.errors.bring(segment, source, segment.size_bytes, self.pace)
                copy = self.errors.store.path / segment.name
            except (CorruptInput, Vanished) as unreadable:
                _log.error("its bytes can't be stored either: %s", unreadable)
        self._note(segment, str(error), counts)
        if copy is not None:
            self._free(source, segment, counts)

    def _note(self, segment: Segment, reason: str, counts: TransferCounts) -> None:
        """Write the reason for which a segment was quarantined, and call the user's class."""
        if self.errors is None:
            return
        write_note(self.errors.store, segment, reason, lost=reason == _DROPPED)
        if self.transfer_class is not None:
            kept = isinstance(self.errors.store, FolderStore) and self.errors.store.path / segment.name
            try:
                self.transfer_class.on_error(kept if kept and kept.exists() else None, reason)
            except Exception:  # noqa: BLE001  # an error of the user's class must not block other segments
                _log.exception("%s failed on %s", type(self.transfer_class).__name__, segment.name)
                counts.failed += 1

    def _bring_errors(self, errors: WholeSegments, counts: TransferCounts) -> None:
        for segment in errors.segments():
            if self.is_captured(segment):
                # The target removes captured segments without reading them: this is the only copy.
                _log.warning(
                    "segment %s stays in the errors folder: it is before the stored offset", segment.name
                )
                continue
            with self._counting_failure(segment, counts):
                self.target.bring(_finished(segment), errors, segment.size_bytes, self.pace)
                errors.remove(segment)
                if not reports_loss(errors.store, segment.name):  # capture marks the tables by the note
                    errors.store.remove(segment.name + NOTE_SUFFIX)
                counts.copied += 1

    def _clear_captured(self, counts: TransferCounts) -> None:
        if not isinstance(self.target, WholeSegments):
            return
        for segment in self.target.segments():
            if (segment.complete or not segment.readable) and self.is_captured(segment):
                with self._counting_failure(segment, counts):
                    self._dispose(self.target, segment, counts)

    def _archive_has_another(self, target: WholeSegments, segment: Segment) -> bool:
        """Return whether the archive has a segment of this id: what was captured isn't replaced any more."""
        if self.after_commit != "archive" or self.archive is None or not self.archive.has(segment):
            return False
        return not equal_start(self.archive, target, segment, segment.size_bytes)

    @contextmanager
    def _counting_failure(self, segment: Segment, counts: TransferCounts) -> Iterator[None]:
        """Count a segment's error, so that it doesn't stop the work on others."""
        try:
            yield
        except (CdcError, Vanished, OSError) as error:
            counts.failed += 1
            _log.warning("segment %s was left, the next transfer will retry: %s", segment.name, error)

    def _dispose(self, target: WholeSegments, segment: Segment, counts: TransferCounts) -> None:
        if segment.size_bytes > LARGEST_SEGMENT_BYTES:
            _log.error("%s is removed: it is larger than any segment", segment.name)
        elif segment.readable and self._archive_has_another(target, segment):
            _log.error("segment %s is removed: the archive has another one of its id", segment.name)
        elif segment.readable:
            if self.after_commit == "archive" and self.archive is not None and not self.archive.has(segment):
                self.archive.bring(segment, target, segment.size_bytes, Pace())
                counts.archived += 1
            if self.transfer_class is not None and isinstance(target.store, FolderStore):
                try:
                    with TemporaryDirectory() as private:
                        self.transfer_class.on_success(*_private_copy(target.store, segment, Path(private)))
                except Exception:  # noqa: BLE001  # any error of the user's class keeps the segment
                    _log.exception("%s failed on %s", type(self.transfer_class).__name__, segment.name)
                    counts.failed += 1
                    return
        target.remove(segment)
        counts.deleted += 1


def _private_copy(store: FolderStore, segment: Segment, folder: Path) -> tuple[Path, Path | None]:
    """Copy a segment and its index to where their writer can't replace them by links."""
    log, index = folder / segment.name, folder / segment.index_name
    FolderStore(folder).write(segment.name, store.read(segment.name, 0, segment.size_bytes))
    if segment.index is None:
        return log, None
    index.write_text(segment.index.text)
    return log, index


def _finished(segment: Segment) -> Segment:
    """Mark a lost segment as finished, so that capture reads it to its end."""
    if segment.index is None or segment.complete:
        return segment
    end = segment.index.end
    return replace(segment, index=Index(end, True, f"{end}\nCOMPLETED"))
