"""Checks of many tables have a line for each kind and setting."""

from __future__ import annotations

from airflow_cdc_provider.sources.scylla.check import RequiredImages, check_images, check_logs
from airflow_cdc_provider.sources.scylla.log_options import CdcOption


def test_three_hundred_logs_have_a_line_for_each_setting() -> None:
    options = {f"s.t{n}": CdcOption(True, (86400, 600, 20)[n % 3], delta="keys") for n in range(300)}
    options["s.one"] = CdcOption(True, 7200)
    options["s.kept"] = CdcOption(True, 0)
    retention = [(f.level, f.message, f.subject[:10]) for f in check_logs(options, 30)]
    assert retention == [
        ("error", "their logs expire after 20 s, and are read 30 s or more after the write", "s.t2, s.t5"),
        ("ok", "their logs expire after 600 s: the longest pause between two runs", "s.t1, s.t4"),
        ("ok", "its log expires after 7200 s: the longest pause between two runs", "s.one"),
        ("ok", "their logs expire after 86400 s: the longest pause between two runs", "s.t0, s.t3"),
        (
            "warning",
            "their logs contain keys only: a mirror can't be built from keys, and rows must be read again",
            "s.t0, s.t1",
        ),
    ]
    (images,) = check_images(options, RequiredImages(after="publish.scylla.after"))
    assert images.subject.endswith(" and 292 more")
    assert images.remedy == (
        "ALTER TABLE s.t0 WITH cdc = {'enabled': true, 'postimage': true}, and the others likewise"
    )
