"""The launcher's last act."""

import types
from unittest import mock

from tfdist.cli import supervisor
from tfdist.cli import task


def test_what_is_left_is_killed():
    left = mock.create_autospec(task.Task, instance=True)
    run = types.SimpleNamespace(_running=lambda: [left])
    supervisor.Supervisor._kill_what_is_left(run)
    left.kill.assert_called_once_with()
