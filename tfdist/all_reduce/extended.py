"""The `StrategyExtended` of workers without servers."""

import contextlib
import functools
import weakref

import keras
import tensorflow as tf

from tfdist import compiled_parts
from tfdist import empty_epochs
from tfdist import fused_kernels
from tfdist import guarded_steps
from tfdist import model_optimizers
from tfdist import one_replica
from tfdist import own_random_numbers
from tfdist import private_keras
from tfdist import private_keras_building
from tfdist import private_keras_calls
from tfdist import private_keras_variables
from tfdist import private_tensorflow
from tfdist import running_fit
from tfdist.all_reduce import optimizers
from tfdist.all_reduce import step as step_lib
from tfdist.all_reduce import variables
from tfdist.data_shares import shares
from tfdist.saving import callbacks
from tfdist.saving import models


class AllReduceExtended(one_replica.WorkerExtended):
    """One replica in each process, with variables of its own.

    Args:
      container_strategy: The strategy that this belongs to.
      make_engine: Callable of the strategy that makes the `Engine`.
      device: Of this worker.
    """

    lets_variables_move = False

    def __init__(self, container_strategy, make_engine, device):
        self.engine = make_engine(container_strategy)
        super().__init__(container_strategy, device, self.engine.is_chief)
        # How many shares the data of the last `fit` was divided into.
        self.data_shares = None
        # Called with each new variable.
        self.on_variable = lambda variable: None

    # Variables.

    def _create_variable(self, next_creator, **kwargs):
        del next_creator  # Ours is the last word on what a variable is.
        engine = self.engine
        if tf.executing_eagerly():
            # Such as an optimizer that a model is then compiled with: what
            # others end is a `fit` with the one before.
            engine.fits.end_if_abandoned()
        maker, kwargs = self._begin_variable(kwargs)
        if engine.files.is_shared:
            models.see_callers(engine.files)
        if isinstance(maker, keras.optimizers.Optimizer):
            optimizers.see(maker, engine)
        trainable = kwargs.get("trainable")
        made = variables.WorkerVariable(
            engine=engine,
            kind=variables.Kind.OWN,
            **one_replica.with_value(kwargs),
        )
        if trainable is None:
            # A `tf.Variable` without the argument; a count is none of the
            # weights.
            trainable = made.trainable and made.dtype.is_floating
        made.kind = variables.kind_of(
            maker,
            trainable,
            made.synchronization,
            made.aggregation,
            kwargs.get("name"),
            engine.sums_own_gradients,
        )
        if made.kind is variables.Kind.SHARED or made.counts_steps:
            made.place = next(engine.places)
        one_replica.note_keras_variable(made)
        made.see_accumulation(maker)
        engine.variables.append(weakref.ref(made))
        with tf.init_scope():  # A step that is traced may have made it.
            if made.is_seed and engine.config.is_worker:
                made.spread_seed(engine.config.worker_id)
            self.on_variable(made)
        return made

    def _validate_colocate_with_variable(self, colocate_with_variable):
        if not isinstance(colocate_with_variable, variables.WorkerVariable):
            raise ValueError(
                "Argument `colocate_with_variable` must be a variable that "
                "was created under this strategy's scope. Received: "
                f"colocate_with_variable={colocate_with_variable!r}"
            )

    # Steps.

    def _call_for_each_replica(self, fn, args, kwargs):
        if self.engine.num_workers > 1:
            private_keras.make_seed_generator_in(self._container_strategy())
        _, purpose = private_keras_calls.step_of(fn)
        if purpose not in ("test", "predict"):
            # Also where a step is traced, as the first one of another model.
            with tf.init_scope(), private_tensorflow.outside_of_functions():
                self.engine.fits.end_if_abandoned()
        if isinstance(fn, tf.types.experimental.PolymorphicFunction):
            if tf.executing_eagerly():
                function = self._trace(fn)
                return self.engine.collectives.call(function, args, kwargs)
            fn = private_tensorflow.inlined(fn)
        with self.engine.replica_context():
            if not private_tensorflow.is_compiled_by_xla():
                return self._run(fn, args, kwargs)
            with compiled_parts.in_parts():
                return self._run(fn, args, kwargs)

    def _run(self, fn, args, kwargs):
        model, purpose = private_keras_calls.step_of(fn)
        if model is None and self.engine.fits.model_of_step is not None:
            # The model's `train_step` is no method of it.
            model, purpose = self.engine.fits.model_of_step, "train"
        # At the end of the data nothing must count a batch that is not there,
        # as an operation would that does not depend on it.
        inputs = contextlib.nullcontext()
        if not tf.executing_eagerly():
            inputs = tf.control_dependencies(
                one_replica.tensors_in((args, kwargs))
            )
        own_numbers = own_random_numbers.of(self.engine.config)
        with (
            one_replica.foreign_objects_explained(),
            own_numbers as common_seed,
            inputs,
        ):
            if purpose in ("test", "predict"):
                # A layer that assigns state then does so on this worker.
                with self.engine.evaluating():
                    return compiled_parts.call(fn, args, kwargs)
            step = step_lib.TrainingStep(
                self.engine,
                trains=purpose == "train",
                common_seed=common_seed,
            )
            with self.engine.recording(step, model):
                return compiled_parts.call(fn, args, kwargs)

    def _replica_ctx_all_reduce(self, reduce_op, value, options=None):
        self._refuse_reduction()
        return tf.nest.map_structure(one_replica.identity, value)

    def _check_reduction(self):
        if self.engine.is_in_step:
            self._refuse_reduction()

    def _refuse_reduction(self):
        """Refuses one that is not of the optimizer, where others take part."""
        if self.engine.is_applying or self.engine.collectives.num_workers == 1:
            return
        if private_keras_variables.optimizer_under_way() is not None:
            raise ValueError(
                "An optimizer was created outside strategy.scope(): create "
                "the model and the optimizer, and compile, inside the scope."
            )
        raise NotImplementedError(
            f"{one_replica.REDUCTIONS} must not be called in a step "
            f"of {type(self._container_strategy()).__name__}: at the end of "
            "its data a worker would not take part. Use synchronized=False, "
            "or an optimizer."
        )

    def _update(self, var, fn, args, kwargs, group):
        update = self.engine.update
        if update is None:
            return fused_kernels.update(var, fn, args, kwargs)
        return update.call(var, fn, args, kwargs)

    # Input.

    def _experimental_distribute_dataset(self, dataset, options):
        return shares.distribute(
            dataset,
            self.engine.config,
            self._before_data,
            compare=self.engine.fits.note_data,
        )

    def _before_data(self, request, data_shares):
        purpose, frame, adapter = request
        callbacks.see_request(request, self.engine.files)
        if purpose not in ("train", "evaluate"):
            return None
        engine = self.engine
        model = private_keras_calls.model_of(frame)
        # Where it was compiled outside the scope, or got its `train_step`
        # later.
        private_keras_building.build_without_data(model)
        if engine.files.is_shared:
            models.see(model, engine.files)
        if purpose != "train":
            return None
        model_optimizers.check_scope(model)
        callbacks.see_backups(private_keras_calls.callbacks_of(frame))
        self.data_shares = data_shares
        running = running_fit.begin(frame)
        number = engine.fits.watch(frame, running, is_own=adapter is None)
        # At the end of the epoch, or at once, this worker follows the others.
        empty = empty_epochs.EmptyEpochs(stay_away=lambda: None)
        call = functools.partial(empty.call, engine.fits.call)
        guarded_steps.guard(model, call)
        return number

    def _distribute_datasets_from_function(self, dataset_fn, options):
        return shares.from_function(dataset_fn, self.engine.config)
