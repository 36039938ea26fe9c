"""The `StrategyExtended` of parameter servers."""

import weakref

import keras
import tensorflow as tf

from tfdist import compiled_parts
from tfdist import fused_kernels
from tfdist import one_replica
from tfdist import own_random_numbers
from tfdist import private_keras
from tfdist import private_keras_calls
from tfdist import private_keras_variables
from tfdist import private_tensorflow
from tfdist.data_shares import shares
from tfdist.program_error import ProgramError
from tfdist.runtime.keras_hooks import data_hooks
from tfdist.runtime.keras_hooks import eager_step
from tfdist.runtime.keras_hooks import evaluations
from tfdist.runtime.keras_hooks import new_tables
from tfdist.runtime.variables.variables import ReplicaVariable
from tfdist.runtime.variables.variables import Role
from tfdist.runtime.variables.variables import active
from tfdist.saving import models


class ParameterServerExtended(one_replica.WorkerExtended):
    """One replica per worker process, primaries on servers.

    Gradients are not reduced between workers: an optimizer's reduction is
    the identity, and its updates are recorded and exchanged with the servers.

    Args:
      container_strategy: The strategy that this belongs to.
      runtime: The `Runtime`.
      config: The `ClusterConfig`.
    """

    def __init__(self, container_strategy, runtime, config):
        super().__init__(
            container_strategy, runtime.store.worker_device, config.is_chief
        )
        self._runtime = runtime
        self._store = runtime.store
        self._config = config
        self._eager_steps = eager_step.EagerSteps(runtime)
        runtime.create_with(self._create_variable)

    # Variables.

    def _create_variable(self, next_creator, **kwargs):
        del next_creator  # Ours is the last word on what a variable is.
        reference = kwargs.pop("colocate_with", None)
        if not isinstance(reference, ReplicaVariable):
            reference = None
        if tf.executing_eagerly() and active.step is None:
            self._runtime.local.before_variable()
        maker, kwargs = self._begin_variable(kwargs)
        has_tables = self._store.tables.from_bytes is not None
        if self._runtime.files.is_shared or has_tables:
            models.see_callers(self._runtime.files)
        made_by_optimizer = isinstance(maker, keras.optimizers.Optimizer)
        table = new_tables.create(self._store, reference, maker, kwargs)
        if table is not None:
            return table
        made = self._store.create_variable(
            reference,
            made_by_optimizer=made_by_optimizer,
            made_by_layer=maker is not None and not made_by_optimizer,
            **one_replica.with_value(kwargs),
        )
        if made_by_optimizer and made.role is Role.ITERATIONS:
            made.optimizer = weakref.ref(maker)
        one_replica.note_keras_variable(made)
        # With one worker, nobody waits for as many.
        may_wait = maker is None and self._config.num_workers > 1
        if may_wait and active.eager_step() is not None:
            self._eager_steps.variables.check(made)
        return made

    def _validate_colocate_with_variable(self, colocate_with_variable):
        if not isinstance(colocate_with_variable, ReplicaVariable):
            raise ValueError(
                "Argument `colocate_with_variable` must be a variable that "
                "was created under this strategy's scope. Received: "
                f"colocate_with_variable={colocate_with_variable!r}"
            )

    # Steps.

    def _call_for_each_replica(self, fn, args, kwargs):
        strategy = self._container_strategy()
        if self._config.num_workers > 1:
            private_keras.make_seed_generator_in(strategy)
        eagerly = tf.executing_eagerly()
        if eagerly and isinstance(
            fn, tf.types.experimental.PolymorphicFunction
        ):
            return self._store.call(self._trace(fn), args, kwargs)
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            # As part of this function: what a step does is followed here.
            fn = private_tensorflow.inlined(fn)
        with one_replica.ReplicaContext(strategy, replica_id_in_sync_group=0):
            if eagerly:
                return self._run_eagerly(fn, args, kwargs)
            if active.step is not None:
                raise ProgramError("strategy.run inside strategy.run.")
            return self._record(fn, args, kwargs)

    def _run_eagerly(self, fn, args, kwargs):
        retries = self._runtime.coordination.retries
        self._eager_steps.variables.begin()
        evaluates = _evaluates(fn)
        while True:
            evaluation = self._step_of_evaluation(evaluates, is_eager=True)
            repeats = retries and evaluation is None
            step = evaluation or self._eager_steps.begin(
                fn, (args, kwargs), evaluates
            )
            before, active.step = active.step, step
            if repeats:
                self._runtime.journal.forget_dropped()
            try:
                with one_replica.foreign_objects_explained():
                    result = fn(*args, **kwargs)
                    self._finish_step(fn)
                if repeats:
                    _check_may_be_retried(active.step)
            finally:
                active.step = before
            if not (repeats and bool(self._runtime.journal.was_dropped())):
                return result
            step.put_back()

    def _step_of_evaluation(self, evaluates, is_eager):
        """An `EvaluationStep` if this worker may evaluate by itself; or None.

        Between two exchanges of local steps, a step has to see to more.

        Args:
          evaluates: Whether the step is one of `evaluate` or `predict`.
          is_eager: Whether it is not traced.
        """
        runtime = self._runtime
        if runtime.local.keeps_own_values or not runtime.evaluations.are_own:
            return None
        if not evaluates:
            return None
        if is_eager:
            runtime.commit()
        return evaluations.EvaluationStep(is_eager)

    def _record(self, fn, args, kwargs):
        if private_tensorflow.is_compiled_by_xla():
            with compiled_parts.in_parts():
                return self._record(fn, args, kwargs)
        if not self._runtime.coordination.retries:
            return self._record_once(fn, args, kwargs)
        return self._record_until_accepted(fn, args, kwargs)

    def _record_until_accepted(self, fn, args, kwargs):
        """Traces a step that is taken again while its gradient is dropped."""
        steps = []
        first = self._record_once(fn, args, kwargs, steps)
        flat = tf.nest.flatten(first, expand_composites=True)
        numbers = [k for k, x in enumerate(flat) if isinstance(x, tf.Tensor)]

        def again(*previous):
            for step in steps:
                step.put_back()
            result = self._record_once(fn, args, kwargs, [])
            leaves = tf.nest.flatten(result, expand_composites=True)
            return [leaves[k] for k in numbers] or [tf.constant(0)]

        last = tf.while_loop(
            lambda *previous: self._runtime.journal.was_dropped(),
            again,
            [flat[k] for k in numbers] or [tf.constant(0)],
            parallel_iterations=1,
        )
        for k, value in zip(numbers, last, strict=False):
            flat[k] = value
        return tf.nest.pack_sequence_as(first, flat, expand_composites=True)

    def _record_once(self, fn, args, kwargs, repeatable=None):
        self._runtime.server_functions.note(tf.compat.v1.get_default_graph())
        evaluates = _evaluates(fn)
        step = self._step_of_evaluation(evaluates, is_eager=False)
        if repeatable is not None:
            self._runtime.journal.forget_dropped()
        active.step = step or self._runtime.local.new_step(
            (args, kwargs), evaluates
        )
        try:
            # At the end of the data nothing must count a batch that is not
            # there, as an operation would that does not depend on it.
            with (
                one_replica.foreign_objects_explained(),
                own_random_numbers.of(self._config),
                tf.control_dependencies(one_replica.tensors_in((args, kwargs))),
            ):
                result = compiled_parts.call(fn, args, kwargs)
                self._finish_step(fn)
            if repeatable is not None and step is None:
                _check_may_be_retried(active.step)
                repeatable.append(active.step)
        finally:
            active.step = None
        return result

    def _finish_step(self, fn):
        active.step.finish()
        if active.step.is_training:
            self._eager_steps.note_training(fn)
            self._runtime.journal.note_training()

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        self._check_reduction()
        reduced = tf.nest.map_structure(one_replica.identity, value)
        if active.step is not None:
            active.step.reduced(tf.nest.flatten(reduced))
        return reduced

    def _check_reduction(self):
        step = active.step
        if step is None or self._config.num_workers == 1:
            return
        if isinstance(step, evaluations.EvaluationStep):
            return
        if private_keras_variables.optimizer_under_way() is not None:
            return
        raise NotImplementedError(
            f"{one_replica.REDUCTIONS} must not be called in a step "
            f"of {type(self._container_strategy()).__name__} with "
            "several workers: each takes its steps by itself. Use "
            "synchronized=False, or an optimizer."
        )

    def _update(self, var, fn, args, kwargs, group):
        if not isinstance(var, ReplicaVariable):
            raise ValueError(
                f"Variable {var.name!r} was created outside "
                "strategy.scope(): create the model inside."
            )
        if self._config.is_evaluator and fused_kernels.optimizer_of(fn):
            raise _trains_on_evaluator("An optimizer's step", self._config)
        if not var.role.is_on_server or active.section is not None:
            return fn(var, *args, **kwargs)
        if active.step is None:
            if (
                fused_kernels.optimizer_of(fn) is None
                and tf.executing_eagerly()
            ):
                if self._runtime.evaluations.are_own and (
                    private_keras_calls.evaluation() is not None
                ):
                    # To look at them: `keep` sees to the assignments.
                    return fn(var, *args, **kwargs)
                # Keras puts averaged weights in place when `fit` ends.
                self._container_strategy().await_end_of_training()
                if self._runtime.chief_decisions.is_passed:
                    return None  # Servers hold what came of it, or later.
                with self._runtime.collective_writes():
                    return fn(var, *args, **kwargs)
            if (
                self._config.num_workers == 1
                and tf.executing_eagerly()
                and var.role is not Role.TABLE
            ):
                # Each assignment goes to the servers by itself.
                return fn(var, *args, **kwargs)
            raise ProgramError(
                f"An update of {var.name!r} outside strategy.run: with several "
                "workers, with tables, and inside a tf.function, an "
                "optimizer's step must be part of a step to be sent to the "
                "servers. Call it as strategy.run(step_fn)."
            )
        active.step.update(var, fn, tuple(args), kwargs)
        return None

    # Input.

    def _experimental_distribute_dataset(self, dataset, options):
        return shares.distribute(
            dataset,
            self._config,
            self._before_data,
            self._runtime.note_data,
            self._runtime.chief_decisions.begin_data,
            self._runtime.work.data,
        )

    def _before_data(self, request, shares):
        if request.purpose == "train" and self._config.is_evaluator:
            raise _trains_on_evaluator("model.fit", self._config)
        begin = self._container_strategy().wait_for_warm_start
        return data_hooks.before_data(self._runtime, begin, request, shares)

    def _distribute_datasets_from_function(self, dataset_fn, options):
        return shares.from_function(dataset_fn, self._config)

    # What it looks like from outside.

    @property
    def parameter_devices(self):
        return self._store.devices


def _trains_on_evaluator(what, config):
    """The error for a script that trains on the task that evaluates."""
    return ProgramError(
        f"{what} on {config.task_name}: the evaluator does not train, and its "
        "gradients would count as the chief's. Where "
        "strategy.cluster.is_evaluator, call "
        "tfdist.SidecarEvaluator(model, data).start() instead."
    )


def _evaluates(fn):
    """Whether a step is one of `evaluate` or `predict`."""
    _, purpose = private_keras_calls.step_of(fn)
    return purpose in ("test", "predict")


def _check_may_be_retried(step):
    """Refuses a step that does more when it is taken again.

    Raises:
      ValueError: It does.
    """
    reason = None
    if step.num_updates > 1:
        reason = (
            "has several optimizer steps, some of which may have been dropped"
        )
    elif step.accumulates:
        reason = (
            "accumulates gradients (gradient_accumulation_steps), those of its "
            "batch once more"
        )
    if reason is not None:
        raise ValueError(
            'on_drop="retry" takes a step again as a whole, and this one '
            f'{reason}: use on_drop="next".'
        )
