"""Hooks of `fit`, `evaluate` and `predict` that begin by asking for data."""

import functools

from absl import logging

from tfdist import adapted_layers
from tfdist import empty_epochs
from tfdist import guarded_steps
from tfdist import model_optimizers
from tfdist import private_keras_building
from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.runtime.keras_hooks import full_tables
from tfdist.runtime.keras_hooks import table_saving
from tfdist.runtime.keras_hooks import warm_start
from tfdist.saving import callbacks
from tfdist.saving import models


def before_data(runtime, before_training, request, shares):
    """Called when a call of a model asks for its data.

    Args:
      runtime: The `Runtime`; its replicas are refreshed before an evaluation.
      before_training: Called before this worker's first step in `fit`.
      request: The `DataRequest`.
      shares: Number of shares of the data; None where it is not shared out.

    Returns:
      An order number: the number of the call of `fit`, the same on all workers,
      or one of a call within it, see `ChiefDecisions.number_of_order`; None
      outside of `fit`.
    """
    purpose, frame, adapter = request
    callbacks.see_request(request, runtime.files)
    if purpose not in ("train", "evaluate"):
        return None
    model = private_keras_calls.model_of(frame)
    # Where it was compiled outside the scope, or got its `train_step` later.
    private_keras_building.build_without_data(model)
    adapted_layers.see(model)
    runtime.evaluations.restore_before(frame)
    tables = table_saving.tables_of(model, runtime.store)
    if runtime.files.is_shared or tables:
        # A save that a table refuses leaves the file that was there.
        models.see(model, runtime.files)
    has_tables = runtime.store.tables.from_bytes is not None
    if tables or (has_tables and not model.built):
        evaluate = functools.partial(_evaluate, runtime.call)
        guarded_steps.guard_looks(model, evaluate, runtime.call)
    if purpose == "evaluate":
        runtime.pull()
        runtime.unused_models.refuse([v.value for v in model.variables])
        return None
    model_optimizers.check_scope(model)
    callbacks.see_backups(private_keras_calls.callbacks_of(frame))
    runtime.evaluations.check(private_keras_calls.callbacks_of(frame))
    table_saving.check(tables, private_keras_calls.callbacks_of(frame))
    running = running_fit.begin(frame)
    runtime.work.watch(running)
    call = functools.partial(runtime.work.call, runtime.call_in_fit)
    if has_tables and runtime.store.is_chief:
        full = full_tables.FullTables(running, model, runtime.store)
        call = functools.partial(full.call, call)
    empty = empty_epochs.EmptyEpochs(runtime.coordination.stay_away)
    call = functools.partial(empty.call, call)
    adapted = adapted_layers.AdaptedLayers(model, runtime.commit)
    call = functools.partial(adapted.call, call)
    turn = warm_start.Turn(before_training)
    call = functools.partial(turn.call, call)
    runtime.chief_decisions.watch(frame, running)
    if runtime.chief_decisions.comes_back:
        callbacks.keep_rows(private_keras_calls.callbacks_of(frame))
    call = functools.partial(runtime.chief_decisions.call, call)
    runtime.watch(running, frame)
    is_guarded = runtime.recovery.is_needed or has_tables
    # A `fit` of the user's own may have steps of its own, too.
    is_own = adapter is None
    number = runtime.call_numbers.next(running, is_own or not is_guarded)
    if has_tables:
        late = table_saving.LateCheck(
            model, runtime.store, private_keras_calls.callbacks_of(frame)
        )
        call = functools.partial(late.call, call)
    if is_guarded:
        call = functools.partial(_count, runtime.call_numbers, call)
        guarded_steps.guard(model, call)
    runtime.note_data_shares(shares)
    number_of_order = runtime.chief_decisions.number_of_order
    # Of a `fit` of the user's own the chief's decisions may see no step.
    return max(number, number_of_order) if is_own else number_of_order or number


def _count(numbers, call, function, *args):
    numbers.begin()
    return call(function, *args)


def _evaluate(call, function, *args):
    """Calls a step of an evaluation that looks up rows on servers.

    Args:
      call: Callable of it and its arguments, which may call it again.
      function: The step.
      *args: Its arguments.
    """
    calls = 0

    def step(*args):
        nonlocal calls
        calls += 1
        return function(*args)

    result = call(step, *args)
    if calls > 1:
        logging.warning(
            "A parameter server was lost during an evaluation: the batches of "
            "the step that has failed are left out of it."
        )
    return result
