"""Local steps of virtual workers, one worker's at a time."""

import dataclasses

import tensorflow as tf

from tfdist import own_random_numbers
from tfdist.averaging.base import Pushed
from tfdist.averaging.base import is_momentum
from tfdist.simulation.compiled import Compiled
from tfdist.simulation.gradients import Gradients
from tfdist.simulation.gradients import apply


@dataclasses.dataclass
class Own:
    """The state of one worker; lists of tensors.

    Attributes:
      parameters: Its weights; None after a push that they are of no more use
        after.
      anchor: What the servers gave it last.
      point: Its weights before its last step, where they are asked for.
      rest: The model's variables that are not trained, then the state of its
        inner optimizer.
      accrued: Sums of its gradients, where they are asked for.
      fetched: Parameters that it is given during its job, by the steps done
        before.
    """

    parameters: list
    anchor: list
    point: list
    rest: list
    accrued: list
    fetched: dict


class VirtualLocalSteps:
    """Takes steps with a model's own optimizer, and keeps nothing.

    The model's trainable variables and its optimizer's hold a worker's while
    it takes steps. As Keras's own training step makes them: with clipping,
    weight decay, constraints and schedules.

    Args:
      model: The compiled `keras.Model`.
      data: A `Data`.
      method: A `LocalSteps` of `tfdist.averaging`, resolved.

    Attributes:
      first: First values of `Own.rest`.
      num_states: How many of these are the model's.
      assigned: Places of those that a step assigns, a set; known when the first
        step has been taken.
    """

    def __init__(self, model, data, method):
        self._data = data
        self._method = method
        self._parameters = model.trainable_variables
        self._optimizer = model.optimizer
        self._gradients = Gradients(model, data)
        self._optimizer.build(self._parameters)
        slots = slots_of(self._optimizer)
        self._rest = [*model.non_trainable_variables, *slots]
        self.first = _values(self._rest)
        self.num_states = len(model.non_trainable_variables)
        self.assigned = set(range(self.num_states, len(self._rest)))
        self._resets = [
            place
            for place, slot in enumerate(slots, self.num_states)
            if method.reset_momentum and is_momentum(slot.name)
        ]
        self._needs_points = method.keeps_own
        # Whether a worker's weights are of use after a push.
        self._keeps = method.keeps_own or (
            method.fetch_steps(tf.ones([], tf.int64)) is not None
        )
        self._accrues = method.pushed is Pushed.GRADIENTS
        self._zeros = [
            tf.zeros(variable.shape, variable.dtype)
            for variable in (self._parameters if self._accrues else ())
        ]
        # By the size of batches.
        self._takes = {}
        self._adopt = _of_each(method.adopt)
        self._push = _of_each(method.push)

    def begin(self, worker, given):
        """The `Own` of a process that has done nothing yet.

        Args:
          worker: Number of its worker.
          given: List of tensors: what the servers have given it.
        """
        return Own(
            parameters=given,
            anchor=given,
            point=given if self._needs_points else [],
            rest=own_random_numbers.spread_seeds(
                self._rest, self.first, worker
            ),
            accrued=self._zeros,
            fetched={},
        )

    def adopt(self, own, fresh):
        """A worker that has been given parameters after a push goes on.

        Args:
          own: Its `Own`, which is changed.
          fresh: List of tensors.
        """
        if self._needs_points:
            kept = self._adopt(own.parameters, own.point, own.anchor, fresh)
            own.parameters = [
                variable.constraint(value) if variable.constraint else value
                for variable, value in zip(self._parameters, kept, strict=True)
            ]
        else:
            own.parameters = fresh
        own.anchor = fresh
        for place in self._resets:
            own.rest[place] = self.first[place]

    def take(self, own, counted, batches):
        """A worker takes steps.

        Args:
          own: Its `Own`, which is changed.
          counted: Steps that its optimizer has counted before.
          batches: Numbers of batches of the same size, a list.

        Returns:
          The losses, a float32 vector.
        """
        counted = tf.constant(counted, tf.int64)
        arguments = own.parameters, own.rest, own.accrued, counted
        rows = tf.constant([self._data.rows(b) for b in batches], tf.int64)
        size = rows.shape[1]
        if size not in self._takes:
            # One trace for any number of steps.
            self._takes[size] = tf.function(
                self._build, autograph=False
            ).get_concrete_function(
                *arguments, tf.TensorSpec([None, size], tf.int64)
            )
        taken = self._takes[size](*arguments, rows)
        own.parameters, own.point, own.rest, own.accrued, losses = taken
        return losses

    def _build(self, parameters, rest, accrued, counted, rows):
        state, slots = rest[: self.num_states], self._rest[self.num_states :]
        for variable, value in zip(
            [*self._parameters, *slots],
            [*parameters, *rest[self.num_states :]],
            strict=True,
        ):
            variable.assign(value)
        self._optimizer.iterations.assign(counted)
        number = tf.shape(rows)[0]

        def step(done, point, state, accrued, losses):
            weights = _values(self._parameters)
            gradients, after, loss = self._gradients.build(
                weights, state, rows[done]
            )
            self.assigned |= {
                place
                for place, value in enumerate(after)
                if value is not state[place]
            }
            if self._accrues:
                accrued = [
                    total
                    if gradient is None
                    else total + tf.convert_to_tensor(gradient)
                    for total, gradient in zip(accrued, gradients, strict=True)
                ]
            apply(self._optimizer, gradients, self._parameters)
            losses = losses.write(done, tf.cast(loss, tf.float32))
            point = weights if self._needs_points else point
            return done + 1, point, after, accrued, losses

        _, point, state, accrued, losses = tf.while_loop(
            lambda done, *_: done < number,
            step,
            (
                tf.zeros([], tf.int32),
                parameters if self._needs_points else [],
                state,
                accrued,
                tf.TensorArray(tf.float32, number),
            ),
        )
        return (
            _values(self._parameters),
            point,
            [*state, *_values(slots)],
            accrued,
            losses.stack(),
        )

    def pushed(self, own, is_rest):
        """Returns what a worker pushes of its steps, a list of tensors.

        Args:
          own: Its `Own`; sums of gradients start afresh.
          is_rest: Whether the push follows no step of its own, so that it is
            of the weights as they are.
        """
        if self._accrues:
            pushed, own.accrued = own.accrued, self._zeros
            return pushed
        points = own.parameters
        if self._needs_points and not is_rest:
            points = own.point
        pushed = self._push(points, own.anchor)
        if not self._keeps:
            own.parameters = None
        return pushed

    def settle(self, rest, counted):
        """Leaves values in the model and its optimizer, for who looks at them.

        Args:
          rest: Place in `Own.rest` -> tensor; others start afresh.
          counted: Steps, an int.
        """
        for place, variable in enumerate(self._rest):
            variable.assign(rest.get(place, self.first[place]))
        self._optimizer.iterations.assign(counted)


def slots_of(optimizer):
    """The state of a built Keras optimizer, without counter and rate.

    Args:
      optimizer: The optimizer.

    Returns:
      A list of `keras.Variable`.
    """
    return [
        variable
        for variable in optimizer.variables
        if variable.name not in ("iteration", "learning_rate")
    ]


def _values(variables):
    return [tf.identity(variable.value) for variable in variables]


def _of_each(function):
    """A function of one parameter's tensors, for those of all parameters."""
    return Compiled(
        lambda *lists: [function(*one) for one in zip(*lists, strict=True)]
    )
