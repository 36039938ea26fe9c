"""Second tries of smokes that waited too long, and how they are reported.

pytest-rerunfailures runs a test once more if it was ended by `Waited`, a bound
of the harness, and by nothing else. Each such test is listed as FLAKY with both
outputs, whatever became of its second try; more than `MOST` fail the run.
"""

import os

import pytest

MOST = 3


def pytest_terminal_summary(terminalreporter):
    """Lists what was tried twice, with the first output."""
    tried = terminalreporter.getreports("rerun")
    if not tried:
        return
    terminalreporter.section("tried twice")
    for report in tried:
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_line(f"-- {title} --\n{text}")
    failed = {r.nodeid for r in terminalreporter.getreports("failed")}
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    for report in tried:
        ended = "failed again" if report.nodeid in failed else "then passed"
        terminalreporter.write_line(
            f"FLAKY {report.nodeid}: {_last_line(report)}; {ended}; load {load}"
        )


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fails a run in which too many tests were tried twice."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    tried = reporter.getreports("rerun") if reporter else []
    if len(tried) > MOST and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _last_line(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    return crash.message.splitlines()[0] if crash else "no message"
