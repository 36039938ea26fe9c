"""Calls of `fit` that an exception ends, caught, and the next one.

The model and its arithmetic: `decision_tasks`.
"""

import gc

import keras

from tests.multi_process import decision_tasks
from tests.multi_process import handshake
import tfdist

VALUES = (1.0, 3.0)


class Refused(Exception):
    """What a step raises."""


def interrupt(model):
    """Ends a `fit` as Ctrl-C does."""
    del model
    raise KeyboardInterrupt


def run(methods, programs):
    """Runs programs one after the other; reports what all have come to.

    Args:
        methods: of training.
        programs: names of functions here.
    """
    seen = {}
    for method in methods:
        program = decision_tasks.Program(method, VALUES)
        for name in programs:
            print("program", method, name, flush=True)
            globals()[name](program)
            program.note(name)
            program.reset()
        seen[method] = program.seen
    handshake.report(**seen)


def caught(program, *values, **kwargs):
    """Calls `fit`, which raises; then nothing is left of the call."""
    try:
        program.fit(*values, **kwargs)
    except (KeyboardInterrupt, Refused):
        pass
    else:
        raise AssertionError("fit has not raised")
    gc.collect()


def interrupted_twice(program):
    """The same in the first step of each of two calls; then two more."""
    for _ in range(2):
        callback = decision_tasks.At({1: interrupt})
        caught(program, *[program.value] * 4, callbacks=[callback])
    program.fit(program.value, program.value)


def ends_at_once(program):
    """An exception at the end of a call that trains; then two more."""

    class Fails(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            raise Refused

    caught(program, program.value, callbacks=[Fails()])
    program.fit(program.value, program.value)


def interrupted_alone(program, who, **kwargs):
    """The call of one worker is interrupted in its first step of four.

    Args:
        program: the `Program`.
        who: the worker's number.
        **kwargs: of `fit`.
    """
    values = [program.value] * 4
    if program.worker == who:
        callbacks = [
            *kwargs.pop("callbacks", ()),
            decision_tasks.At({1: interrupt}),
        ]
        caught(program, *values, callbacks=callbacks, **kwargs)
    else:
        program.fit(*values, **kwargs)


def compile_with_averages(program):
    """`fit` puts averages in place, which are the newest weights."""
    with program.strategy.scope():
        program.compile(
            keras.optimizers.SGD(1.0, use_ema=True, ema_momentum=0.0)
        )


def interrupted_with_averages(program):
    """One worker's call is interrupted; `fit` puts averages in place."""
    compile_with_averages(program)
    interrupted_alone(program, 1)
    program.fit(program.value, program.value)


def compiled_without_averages_since(program):
    """The same; the next call has no averages."""
    compile_with_averages(program)
    interrupted_alone(program, 1)
    with program.strategy.scope():
        program.compile(keras.optimizers.SGD(1.0))
    program.fit(program.value, program.value)


def interrupted_beside_figures(program, who=1):
    """One worker's call is interrupted; the other's waits for its figures."""
    with program.strategy.scope():
        program.compile(keras.optimizers.SGD(1.0))
    figures = [tfdist.callbacks.ClusterMonitor(verbose=0)]
    interrupted_alone(program, who, callbacks=figures)
    program.fit(program.value, callbacks=figures)
    program.fit(program.value, callbacks=figures)


def chief_interrupted_beside_figures(program):
    """The same; it is the chief's call."""
    interrupted_beside_figures(program, who=0)
