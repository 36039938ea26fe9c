"""The embedded tasks."""

import numpy as np
import pytest

from tfdist import simulation
from tfdist.simulation import tasks


@pytest.mark.nightly
@pytest.mark.parametrize("name", tasks.TASKS)
def test_embedded_tasks_can_be_learned(name):
    task = tasks.load(name)
    assert len(task.train[0]) == len(task.train[1])
    history = simulation.simulate(
        task.model_fn(),
        tuple(array[:640] for array in task.train),
        num_workers=1,
        epochs=2,
        batch_size=task.batch_size,
        validation_data=task.validation,
    )
    before, *_, after = (row["accuracy"] for row in history.evaluations)
    assert after > before + 0.1


def test_the_teacher_is_as_hard_as_it_is_told():
    def chance(sharpness):
        x, y = tasks.teacher(4000, 10, sharpness=sharpness).train
        again, z = tasks.teacher(4000, 10, sharpness=1e3).train
        np.testing.assert_array_equal(x, again)
        return np.mean(y == z)

    # Of labels that are drawn, as many are the most probable one.
    assert chance(0.0) < 0.2 < chance(6.0) < chance(100.0)


def test_unknown_tasks_are_refused():
    with pytest.raises(ValueError, match="digits, text, teacher"):
        tasks.load("imagenet")
