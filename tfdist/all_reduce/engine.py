"""The engine of one strategy: what its steps and calls of `fit` share."""

import contextlib
import itertools
import weakref

from absl import logging
import tensorflow as tf

from tfdist import interrupts
from tfdist import model_optimizers
from tfdist import one_replica
from tfdist import private_tensorflow
from tfdist.all_reduce import consistency as consistency_lib
from tfdist.all_reduce import fit as fit_lib
from tfdist.all_reduce import journal as journal_lib
from tfdist.all_reduce import lane as lane_lib
from tfdist.all_reduce import tail as tail_lib
from tfdist.all_reduce import update_builder
from tfdist.all_reduce import variables as variables_lib
from tfdist.program_error import ProgramError

_LANES = "_tfdist_lanes"


class Engine:
    """Steps of all workers, on this one.

    Args:
      strategy: The `tf.distribute.Strategy`.
      config: The `ClusterConfig`.
      collectives: The `Collectives`, or `NoCollectives`.
      check: The `FiniteCheck`.
      files: The `Files` of this task.

    Attributes:
      consistency: The `Consistency`.
      fits: The `FitCalls`.
      journal: The `StepJournal`.
      wrote: A variable: 1.0 if this worker's code has assigned shared
        variables eagerly since its last step. Where workers send each other
        updates: weights, since the `EpochCheck` began, and in graphs as well.
      is_applying: Whether Keras's own step is under way.
      evaluations_assign: Whether steps of an evaluation or prediction assign
        shared variables, on this worker alone.
      update: The `UpdateBuilder` of the step that is being built, or None.
      variables: Weak references to all variables, in order of creation.
      named: Those of the engine's own, by their names in a saved state.
      places: Counts those that are shared, of layers and own code, and
        optimizers.
    """

    def __init__(self, strategy, config, collectives, check, files):
        self._strategy = weakref.ref(strategy)
        self.config = config
        self.collectives = collectives
        self.check = check
        self.files = files
        self.is_chief = config.is_chief
        self.num_workers = collectives.num_workers
        self.consistency = consistency_lib.Consistency(
            collectives, config.worker_names
        )
        self.journal = journal_lib.StepJournal(self.num_workers)
        self.wrote = private_tensorflow.hidden_variable(0.0)
        self._told = tail_lib.Told()
        self.fits = fit_lib.FitCalls(self)
        self.is_applying = False
        self.evaluations_assign = False
        self._is_evaluating = False
        self.update = None
        self._step = None
        # The lanes of a model's last step, and those of the last step of all.
        self._sequences = weakref.WeakKeyDictionary()
        self._last = ()
        # By number.
        self._lanes = weakref.WeakValueDictionary()
        # Steps of this worker when all had last met.
        self._met_at = 0
        self.variables = []
        self.named = weakref.WeakValueDictionary()
        # Weak references to those that a `tf.function` which a step may call
        # has assigned, by `id`: TensorFlow does not trace it again there.
        self.assigned_within = {}
        self.places = itertools.count()

    def replica_context(self):
        """Scope in which Keras finds itself in a step of the strategy."""
        return one_replica.ReplicaContext(
            self._strategy(), replica_id_in_sync_group=0
        )

    @contextlib.contextmanager
    def applying(self):
        """Scope of what is the same on all workers."""
        before, self.is_applying = self.is_applying, True
        try:
            yield
        finally:
            self.is_applying = before

    @contextlib.contextmanager
    def evaluating(self):
        """Scope of a step of an evaluation, which assigns on this worker."""
        before, self._is_evaluating = self._is_evaluating, True
        try:
            with self.applying():
                yield
        finally:
            self._is_evaluating = before

    @contextlib.contextmanager
    def updating(self):
        """Scope of an optimizer's step that is being built."""
        self.update = update_builder.UpdateBuilder()
        try:
            yield
        finally:
            self.update = None

    # Steps.

    @contextlib.contextmanager
    def recording(self, step, model):
        """Scope of a step of a model (or None), whose lanes are noted."""
        if self._step is not None:
            raise ProgramError("strategy.run inside strategy.run.")
        self._step = step
        with step.together:
            try:
                yield
                step.finish()
            finally:
                self._step = None
            if step.lanes:
                self._note_lanes(tuple(step.lanes), model)

    def _note_lanes(self, lanes, model):
        self._last = lanes
        for lane in lanes:
            lane.step_lanes = lanes
            self._lanes[lane.number] = lane
        if model is not None:
            self._sequences[model] = lanes

    def note(self, tail):
        """Builds the note of the `Tail` of a step; see `Told`."""
        self._told.note(tail)

    def read_told(self):
        """Returns what was noted; see `Told.read`."""
        return self._told.read()

    @property
    def is_in_step(self):
        """Whether a step is being built, or runs eagerly."""
        return self._step is not None

    def step_of(self, optimizer):
        """The step under way, in which an optimizer acts."""
        if self._step is None:
            raise ProgramError(
                f"Optimizer {optimizer.name!r} takes a step outside "
                "strategy.run: only there is it one of all workers. Call it "
                "as strategy.run(step_fn), or use `fit` or `train_on_batch` "
                "of a model that is made inside `with strategy.scope():`."
            )
        return self._step

    def before_assignment(self, variable):
        """Called before a shared variable is assigned."""
        if self._is_evaluating:
            self.evaluations_assign = True
            self.note_traced(variable)
        elif self.is_applying:
            return
        elif self._step is not None:
            self._step.note(variable)
        elif tf.executing_eagerly():
            self.fits.before_write(variable)
        else:
            self.note_traced(variable)

    def note_traced(self, variable):
        """Takes note of what a function assigns that a step may call."""
        if not tf.executing_eagerly():
            self.assigned_within[id(variable)] = weakref.ref(variable)

    def before_access(self, variable):
        """Called before a variable is read, and whenever else it is looked at.

        Args:
          variable: A `WorkerVariable`.
        """
        if self._step is not None and private_tensorflow.is_under_tape():
            self._step.note_under_tape(variable)

    def warn_of_own_state(self, variables):
        """Called when a step that trains nothing has assigned shared state.

        It may be a test step, which not all workers take.

        Args:
          variables: List of `WorkerVariable`.
        """
        new = [
            variable for variable in variables if not variable.is_told_as_own
        ]
        if self.num_workers == 1 or not new:
            return
        for variable in new:
            variable.is_told_as_own = True
        # Weights first.
        new.sort(key=lambda one: not one_replica.is_trainable(one))
        logging.warning(
            "%s is assigned in a step in which no optimizer takes a step: "
            "each worker keeps the value of its own batches, as is right in "
            "an evaluation. If all are to have the mean, take the step of a "
            "Keras optimizer in the same strategy.run or, of a weight, the "
            "gradient with a tf.GradientTape in the function that assigns it. "
            "A tf.Variable that is no weight is made with trainable=False.",
            ", ".join(f"{one.name} {one.shape}" for one in new[:3]),
        )

    def lane_of(self, optimizer, variables, states, have_rows, by_pairs):
        """The `Lane` of an optimizer's step; a new one begins as the chief's.

        Args:
          optimizer: The Keras optimizer, or None.
          variables: Keras variables that it trains.
          states: List of `WorkerVariable`.
          have_rows: Whether the gradient travels as rows, a list of bools.
          by_pairs: See `optimizers.apply`.
        """
        # It is freed with what it acts on.
        owner = states[0] if optimizer is None else optimizer
        lanes = vars(owner).setdefault(_LANES, {})
        key = (*map(id, variables), *have_rows, *map(id, states), by_pairs)
        with tf.init_scope(), private_tensorflow.outside_of_functions():
            if key in lanes:
                lanes[key].follow_settings()
            else:
                lane = lanes[key] = self.make_lane(
                    optimizer, variables, states, have_rows, by_pairs
                )
                if not all(variable.is_agreed for variable in lane.agreeing):
                    self.adopt(consistency_lib.Moment.STEP, lane.shared)
        return lanes[key]

    def make_lane(self, *args):
        """Makes a `Lane`; see there."""
        return lane_lib.Lane(self, *args)

    def names_of(self, optimizers):
        """Beginnings of names in `named` that belong to optimizers, a list."""
        return []

    # Optimizers accumulate means of all workers' gradients.
    sums_own_gradients = False

    @property
    def takes_rows(self):
        """Whether lanes take gradients that are rows of a table."""
        return self.num_workers > 1

    # What steps assign gets the mean of what all workers have assigned.
    reduces_state = True

    # All workers make each update, to the same bits: on devices of one kind,
    # which round alike.
    updates_alike = True

    def adopt(self, moment, variables, settings="", data=0):
        """Gives all workers the chief's values; see `Consistency`."""
        if self.updates_alike and variables:
            kinds = consistency_lib.kinds_of_devices(variables)
            parts = settings, f"variables on {kinds}"
            settings = "; ".join(filter(None, parts))
        with self.applying():
            chiefs = self.consistency.adopt(moment, variables, settings, data)
            if moment is consistency_lib.Moment.STEP:
                self.consistency.adopt_others(moment, self._not_agreed())
        return chiefs

    def _not_agreed(self):
        """Shared variables of layers and own code that no step has used yet."""
        found = [reference() for reference in self.variables]
        return [
            variable
            for variable in found
            if variable is not None
            and variable.kind is variables_lib.Kind.SHARED
            and not variable.is_agreed
        ]

    # Between steps.

    def call(self, function, *args):
        """Calls a `train_function`; see `Collectives`."""
        return self.collectives.call(function, *args)

    def meeting(self):
        """Scope of what all workers do together: Ctrl-C waits for its end."""
        return interrupts.deferred()

    def adopt_model(self, moment, model, optimizers=(), data=0):
        """Gives all workers the chief's values of what a model shares.

        Args:
          moment: The `Moment`.
          model: The `keras.Model`.
          optimizers: Keras optimizers, which must be alike on all workers.
          data: Value of the `DataNumber` of this worker.

        Returns:
          That of the chief, an int; 0 where the workers have not met.

        Raises:
          ModelMismatchError: Another worker's model differs.
          ValueError: Another worker trains in another way, or begins `fit` with
            another epoch.
        """
        return self.adopt(
            moment,
            self._shared_by(model),
            self.fits.settings(moment, optimizers),
            data,
        )

    def compare_model(self, moment, model):
        """Compares what workers share of a model; see `Consistency`."""
        shared = self._shared_by(model)
        self.consistency.compare(moment, [v for v in shared if not v.is_rate])

    @property
    def has_failed(self):
        """Whether workers can meet no more, for good."""
        return self.collectives.has_failed

    def put_averages(self, model, are_there):
        """Puts averages of weights in place where other workers have.

        Keras does at the end of `fit`, unless an exception ends it.

        Args:
          model: The `keras.Model`.
          are_there: Whether Keras has done so on this worker.
        """
        if not (
            self.updates_alike and model_optimizers.averages_weights(model)
        ):
            return
        moment = consistency_lib.Moment.END_OF_FIT
        if self.consistency.meet(moment, are_there).any() and not are_there:
            with self.applying():
                model.optimizer.finalize_variable_values(
                    model.trainable_weights
                )

    def _shared_by(self, model):
        return variables_lib.shared_by(model, self.lanes_of(model))

    def end_epoch(self):
        """Called when this worker is at the end of an epoch."""

    def lanes_of(self, model):
        """The lanes of the last step of a model, a tuple."""
        return self._sequences.get(model, ())

    @interrupts.deferred()
    def follow(self, lanes, **mine):
        """Takes part in one step of the others without a batch.

        Args:
          lanes: Those of the step; not empty.
          **mine: Numbers of this worker, of `Tail`.

        Returns:
          The `Tail` of the first lane.
        """
        first = lanes[0].follow(**mine)
        if first.present:
            for lane in lanes[1:]:
                lane.follow(**mine)
        return first

    def barrier(self):
        """Waits for all workers, and takes part in their steps until then."""
        self.fits.end_abandoned()
        if self.fits.is_running or self.fits.is_ending:
            with self.meeting():
                self.consistency.meet(consistency_lib.Moment.BARRIER)
                self.note_met()
        else:
            self.end_loops()

    def end_loops(self):
        """Ends loops of the user's own, and compares what they have trained.

        Follows the others' steps, if one model has them. Where several models
        train in loops, nobody knows which steps the others are about to take:
        all have to take the same number. A worker that has taken no step since
        all have met expects those that it has taken last.

        Raises:
          DifferentValuesError: Workers hold different values.
        """
        numbers = self.journal.lanes_since(self._met_at)
        steps = {
            self._lanes[number].step_lanes
            for number in numbers
            if number in self._lanes
        } or {self._last}
        # Garbage collection may have freed the lanes of a model on this worker
        # alone. Numbers are the same on all: these are of another step.
        has_freed = any(number not in self._lanes for number in numbers)
        followed = ()
        if len(steps) == 1 and not has_freed:
            (followed,) = steps
        is_over = False
        while not is_over:
            with self.meeting():
                is_over = not followed or self._follow_to_end(followed)
                if is_over:
                    self._compare_loops(steps)
                    self.note_met()

    def _follow_to_end(self, lanes):
        """Follows a step; returns whether nobody takes another."""
        chief = self.is_chief * tail_lib.IS_OVER
        tail = self.follow(lanes, over=1.0, chief=chief)
        return tail.over >= self.num_workers

    def _compare_loops(self, steps):
        used = sorted(
            {lane for lanes in steps for lane in lanes},
            key=lambda lane: lane.number,
        )
        trained = {id(v): v for lane in used for v in lane.trained}
        self.consistency.compare_trained(
            list(trained.values()), self.has_trained
        )

    @property
    def has_trained(self):
        """Whether this worker has taken steps since all have met."""
        return self.journal.count != self._met_at

    def note_end(self, lanes):
        """Called when all have ended the steps of a call of `fit`.

        Callbacks may then set weights, of which the chief's count.

        Args:
          lanes: Those of its last step.
        """
        self.note_met(lanes)

    def note_met(self, lanes=None):
        """Called when all workers have met after their steps.

        Args:
          lanes: Those of the last step, if it is known of which.
        """
        self._met_at = self.journal.count
        self._last = lanes or self._last
