"""A model cut into stages, each a function of tensors, weights and state."""

import copy
import fnmatch
import itertools

import keras
import tensorflow as tf

from tfdist import checks
from tfdist import private_keras
from tfdist.pipeline import stage_scope
from tfdist.pipeline import stateful_operations
from tfdist.placement import devices as devices_lib
from tfdist.placement import placed
from tfdist.placement.calls import calls_of


class Stage:
    """Calls that run one after another on one device.

    Attributes:
      index: Its place among the stages, from 0.
      devices: Full names of its devices; more than one are replicas, which
        take micro-batches in turn.
      names: The names of its layers, in the order of their calls.
      inputs: Keys of the tensors that it takes from the model's inputs or
        from any stage before it.
      outputs: Keys of the tensors that it gives to stages after it, or that
        are outputs of the model.
    """

    def __init__(self, index, devices, calls, inputs, outputs, of_model=()):
        """Makes it.

        Args:
          index: See above, as `devices`, `inputs` and `outputs`.
          devices: The same.
          calls: Its calls, a list.
          inputs: See above.
          outputs: See above.
          of_model: The calls of all stages, a list.
        """
        self.index = index
        self.devices = tuple(devices)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.names = [call.operation.name for call in calls]
        self._fixed = None
        self._trainable = None
        self._frozen = None
        self._calls = calls
        self._of_model = of_model
        self._context = _Context(self._run_calls)

    @property
    def device(self):
        """The full name of the device that its variables are on."""
        return self.devices[0]

    def device_of(self, unit):
        """The full name of the device that takes a micro-batch."""
        return self.devices[unit % len(self.devices)]

    @property
    def operations(self):
        """Its layers and operations in the order of their calls."""
        return [call.operation for call in self._calls]

    @property
    def variables(self):
        """The Keras variables that its layers and their metrics have now.

        One that several stages use (tied weights) is in each of them.
        """
        if self._fixed is not None:
            return list(self._fixed)
        variables = {}
        for operation in self.operations:
            for name in ("variables", "metrics_variables"):
                for variable in getattr(operation, name, ()):
                    variables.setdefault(id(variable), variable)
        return list(variables.values())

    @property
    def weights(self):
        """Those of its variables that are trainable now."""
        if self._trainable is not None:
            return [v for v in self.variables if id(v) in self._trainable]
        return [v for v in self.variables if v.trainable]

    @property
    def state(self):
        """Its other variables (moving statistics, seeds, frozen weights)."""
        weights = {id(variable) for variable in self.weights}
        return [v for v in self.variables if id(v) not in weights]

    def fixed(self):
        """The same stage, whose variables and weights stay those of now."""
        other = copy.copy(self)
        other._fixed = self.variables  # noqa: SLF001
        other._context = _Context(other._run_calls)  # noqa: SLF001
        other._trainable = {id(weight) for weight in self.weights}  # noqa: SLF001
        other._frozen = self._frozen_of_model()  # noqa: SLF001
        return other

    def run(
        self,
        tensors,
        weights,
        state,
        training=True,
        device=None,
        is_repeated=False,
    ):
        """Runs the stage. Nothing of the model is changed.

        Args:
          tensors: One tensor per key of `inputs`.
          weights: One tensor per variable of `weights`, to use instead.
          state: One tensor per variable of `state`, to use instead.
          training: Whether layers are to behave as in training.
          device: One of its devices; None: the first.
          is_repeated: Whether the same is computed again for the gradient.

        Returns:
          (outputs, state): a tensor per key of `outputs`, and the state after
          the run, a tensor per variable of `state`, which is that of before
          where nothing has changed it.

        Raises:
          ValueError: An output carries a Keras mask, which the next stage
            would not see; a layer has called `add_loss`; a layer has
            assigned a weight, or a variable that is none of its own; it has
            read a trainable variable that is none of its own; or it draws
            random numbers that a repetition would not draw again, or changes
            a variable that a repetition would change again.
        """
        own_state = self.state
        earlier = stateful_operations.built() if is_repeated else []
        scope = stage_scope.StageScope(
            self.weights,
            state_mapping=[
                *zip(self.weights, weights, strict=True),
                *zip(own_state, state, strict=True),
            ],
            collect_losses=True,
        )
        before = dict(scope.state_mapping)
        with (
            tf.device(device or self.device),
            tf.name_scope(devices_lib.scope(device or self.device)),
            # A layer may be on another device: that of a replica, or of the
            # stage that calls it first. It would go there by itself.
            placed.replica_on(device or self.device),
            stage_scope.functions_as_python(),
            tf.GradientTape() as read,
            scope,
        ):
            outputs = self._context(list(tensors), training=training)
        self._check(outputs, scope)
        self._check_read(read.watched_variables())
        if is_repeated:
            self._check_repeated(stateful_operations.built()[len(earlier) :])
        after = [scope.get_current_value(variable) for variable in own_state]
        changed = {
            key
            for key, value in scope.state_mapping.items()
            if before.get(key) is not value
        }
        if not changed <= set(map(id, own_state)):
            raise ValueError(
                f"A layer of stage {self.index} ({', '.join(self.names)}) "
                "assigns a trainable weight, or a variable that no layer of "
                "the stage owns (such as that of keras.random without a "
                "seed): give the layer a variable or a "
                "keras.random.SeedGenerator of its own."
            )
        return outputs, after

    def _check_read(self, variables):
        # Those of the stage are tensors here; TensorFlow does not know which
        # ones Keras has frozen.
        frozen = self._frozen
        if frozen is None:
            frozen = self._frozen_of_model()
        # Placing a model makes other TensorFlow variables of Keras's.
        values = {id(variable.value) for variable in frozen}
        variables = [v for v in variables if id(v) not in values]
        own = {id(variable.value) for variable in self.variables}
        if any(id(variable) in own for variable in variables):
            raise ValueError(
                f"A layer of stage {self.index} ({', '.join(self.names)}) "
                "has a tf.function of its own, which keeps the weights that it "
                "was first traced with: leave out tf.function. Keras's "
                "training step is one already."
            )
        if variables:
            raise ValueError(
                f"A layer of stage {self.index} ({', '.join(self.names)}) "
                f"reads the variable {variables[0].name!r}, which is no "
                "attribute of a layer of the stage (such as a weight that a "
                "Lambda takes from elsewhere): it would get no gradient. Make "
                "it, or the layer that owns it, an attribute of the layer that "
                "reads it; or a tf.Variable with trainable=False."
            )

    def _frozen_of_model(self):
        """Variables of all stages that are not trained now, a list."""
        return [
            variable
            for call in self._of_model
            for variable in getattr(call.operation, "variables", ())
            if not variable.trainable
        ]

    def _check_repeated(self, operations):
        for kinds, does, instead in (
            (
                stateful_operations.RANDOM,
                "draws random numbers with TensorFlow's",
                "keras.random with a keras.random.SeedGenerator of the layer's "
                "own",
            ),
            (
                stateful_operations.ASSIGNMENTS,
                "changes a tf.Variable with",
                "a variable that the layer's add_weight makes",
            ),
        ):
            found = stateful_operations.among(operations, kinds)
            if found:
                what = min(found).rsplit("/", 1)[-1]
                raise ValueError(
                    f"A layer of stage {self.index} ({', '.join(self.names)}) "
                    f"{does} {what}: this stage is computed again for its "
                    f"gradient, and would do that again. Use {instead}; or the "
                    'schedules "gpipe" or "1f1b" without `recompute`.'
                )

    def _run_calls(self, tensors, training):
        values = dict(zip(self.inputs, tensors, strict=True))
        for call in self._calls:
            args, kwargs = call.fill_in(values)
            if isinstance(call.operation, keras.Layer):
                # What it was when the functional model was put together, or
                # what a layer before has called its parts with.
                kwargs["training"] = training
            results = call.operation(*args, **kwargs)
            values.update(
                zip(call.outputs, keras.tree.flatten(results), strict=True)
            )
        return [values[key] for key in self.outputs]

    def _check(self, outputs, scope):
        for output in outputs:
            if private_keras.mask_of(output) is not None:
                raise ValueError(
                    f"Stage {self.index} ({', '.join(self.names)}) gives a "
                    "tensor with a Keras mask, which does not cross into the "
                    "next stage: pass the mask as a tensor, or keep the "
                    "layers that make and use it in one stage."
                )
        if scope.losses:
            raise ValueError(
                f"A layer of stage {self.index} ({', '.join(self.names)}) "
                "uses add_loss or an activity_regularizer, which would count "
                "once for each micro-batch: a pipeline refuses it. Put the "
                "term into the loss function."
            )


def has_gradient(dtype):
    """Whether a tensor of this `tf.DType` passes gradients back."""
    return dtype.is_floating or dtype.is_complex


class _Context(keras.Layer):
    """Tells the layers inside whether they train, as a model does."""

    def __init__(self, run):
        super().__init__(autocast=False, dtype="float32")
        self.supports_masking = True
        self._run = run
        self.built = True

    def call(self, tensors, training=None):
        # Keras hands `training` on to layers that are not told otherwise.
        return self._run(tensors, training)

    def compute_mask(self, inputs, previous_mask):
        return None


def split(model, stages, devices):
    """Cuts a sequential or functional model into stages.

    Args:
      model: A built `keras.Sequential` or functional `keras.Model`.
      stages: Where to cut: a list of names, each of the layer with which the
        next stage begins (K - 1 names for K stages); a list of K lists of
        layer names or patterns, in the order of the stages; or their number,
        K, for stages whose largest estimated work is as small as it can be.
      devices: K devices, one per stage, or lists of replicas. A device may
        have several stages.

    Returns:
      A list of `Stage`.

    Raises:
      ValueError: The model is of another kind or not built, a name that no
        layer has, an empty stage, layers that are not in order.
    """
    calls, _, _ = calls_of(model)
    bounds = cuts(calls, stages)
    if len(devices) != len(bounds) - 1:
        raise ValueError(
            f"stages makes {len(bounds) - 1} stages, and there are "
            f"{len(devices)} devices: {list(devices)}."
        )
    return stages_between(model, bounds, devices)


def resolve(devices):
    """Full names of a stage's device or devices, a tuple."""
    single = isinstance(devices, str)
    names = tuple(
        devices_lib.resolve(device, "devices")
        for device in ([devices] if single else devices)
    )
    if not names or len(set(names)) < len(names):
        raise ValueError(
            "Argument `devices` must have a name for each stage, or a list of "
            f"different names for its replicas. Received: devices={devices!r}"
        )
    return names


def stages_between(model, bounds, devices):
    """Stages of the calls from each bound to the next; see `split`."""
    calls, _, model_outputs = calls_of(model)
    resolved = [resolve(device) for device in devices]
    result = []
    for index, replicas in enumerate(resolved):
        own = calls[bounds[index] : bounds[index + 1]]
        made = {key for call in own for key in call.outputs}
        taken = dict.fromkeys(key for call in own for key in call.inputs)
        later = {
            key for call in calls[bounds[index + 1] :] for key in call.inputs
        } | set(model_outputs)
        outputs = [
            key
            for key in dict.fromkeys(k for call in own for k in call.outputs)
            if key in later
        ]
        inputs = [key for key in taken if key not in made]
        result.append(Stage(index, replicas, own, inputs, outputs, calls))
    return result


def cuts(calls, stages):
    """Bounds of the stages among the calls: 0, ..., the number of calls."""
    names = [call.operation.name for call in calls]
    number = count(stages)
    if checks.is_count(stages, 1):
        if number > len(calls):
            raise ValueError(
                f"Argument `stages` must be 1 to {len(calls)}, the number of "
                f"calls of the model ({', '.join(names)}). Received: "
                f"stages={stages}"
            )
        return _balanced([call.work for call in calls], number)
    if all(isinstance(stage, str) for stage in stages):
        bounds = [0, *(_first(name, names) for name in stages), len(names)]
        if any(a >= b for a, b in zip(bounds, bounds[1:], strict=False)):
            raise ValueError(
                f"stages={list(stages)!r} leaves a stage without a layer or "
                f"is not in the model's order: {', '.join(names)}."
            )
        return bounds
    return _bounds_of_groups(names, stages)


def count(stages):
    """Number of stages that `stages` says, an int; see `split`.

    Raises:
      ValueError: It is none of what it may be.
    """
    if checks.is_count(stages, 1):
        return int(stages)
    if isinstance(stages, (list, tuple)) and stages:
        if all(isinstance(stage, str) for stage in stages):
            return len(stages) + 1
        if all(
            isinstance(stage, (list, tuple))
            and stage
            and all(isinstance(name, str) for name in stage)
            for stage in stages
        ):
            return len(stages)
    raise ValueError(
        "Argument `stages` must be a number of stages, a list of the layers "
        "with which the second, third, ... stage begins, or a list of lists "
        f"of layers. Received: stages={stages!r}"
    )


def _balanced(work, num_stages):
    """Bounds of contiguous groups whose largest sum is the least possible."""
    sums = [0, *itertools.accumulate(work)]
    # Of the first n calls in k groups: (largest sum, bounds).
    best = {n: (sums[n], [0, n]) for n in range(1, len(sums))}
    for k in range(2, num_stages + 1):
        best = {
            n: min(
                (max(best[m][0], sums[n] - sums[m]), [*best[m][1], n])
                for m in range(k - 1, n)
            )
            for n in range(k, len(sums))
        }
    return best[len(work)][1]


def _first(name, names):
    if name not in names:
        raise ValueError(
            f"stages names {name!r}, and no call of the model has such a "
            f"layer. There are: {', '.join(names)}."
        )
    return names.index(name)


def _bounds_of_groups(names, stages):
    owner = []
    for name in names:
        owners = [
            k
            for k, patterns in enumerate(stages)
            if any(fnmatch.fnmatchcase(name, p) for p in patterns)
        ]
        if len(owners) != 1:
            raise ValueError(
                "Argument `stages` must name each layer in exactly one stage. "
                f"Received: {name!r} in {owners or 'none'}"
            )
        owner.append(owners[0])
    if owner != sorted(owner) or set(owner) != set(range(len(stages))):
        raise ValueError(
            "Argument `stages` must each have a layer and be in the order in "
            f"which the model calls them: {', '.join(names)}. Received: "
            f"{owner}"
        )
    return [owner.index(k) for k in range(len(stages))] + [len(names)]
