"""Write a report again when the files of its runs change."""

import logging
import threading

from covid_cmsf.report.build import Report
from covid_cmsf.report.file_watch import read_input_stamps

logger = logging.getLogger(__name__)


def watch_and_rebuild(report: Report, *, interval: float, stop: threading.Event) -> None:
    """Write the report again whenever a file changes, until `stop` is set; then once more, with figures.

    A running plan may move folders: an error while reading is logged, and the next change tries again.
    """
    while not stop.wait(interval):
        try:
            if read_input_stamps(report.paths) != report.input_stamps:
                report.write(live=interval, figures=False)
        except (ValueError, OSError) as error:
            logger.warning("the report could not be written, trying again: %s", error)
    report.write()
