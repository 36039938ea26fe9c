"""Memory that a loop keeps of each iteration for its gradient."""

import math

import tensorflow as tf


def kept_bytes(graph):
    """Bytes that TensorFlow's loops keep of all their turns.

    For the gradient of a loop TensorFlow collects each tensor of its body that
    the gradient takes, in a list with an element per turn.

    Args:
      graph: A traced graph with forward and backward passes.

    Returns:
      A dict from the name of the operation that makes a list to bytes. The
      number of turns is the most elements that any list of the graph is made
      for (a recurrent layer's time steps), 1 if none says. Weights are not
      counted: the elements of their lists are one tensor.
    """
    turns = 1
    lists = {}
    for op in graph.get_operations():
        if op.type == "TensorListReserve":
            count = tf.get_static_value(op.inputs[1])
            turns = max(turns, 1 if count is None else int(count))
        elif op.type == "EmptyTensorList" and "ReadVariableOp" not in op.name:
            shape = tf.get_static_value(op.inputs[0])
            if shape is not None and shape.ndim == 1 and (shape >= 0).all():
                size = op.get_attr("element_dtype").size
                lists[op.name] = math.prod(map(int, shape)) * size
    return {name: turns * size for name, size in lists.items()}
