"""Functions that a graph calls, and the variables that they assign."""

from tfdist import private_tensorflow

# Operations that assign a variable, by how their names begin.
ASSIGNING = (
    "Assign",
    "ResourceApply",
    "ResourceScatter",
    "ResourceSparseApply",
    "ResourceStridedSliceAssign",
)
_CONDITIONALS = ("Case", "If", "StatelessCase", "StatelessIf")


def assigned_by_functions(graph, resources, first=0):
    """Tells which variables functions assign that are called in a graph.

    That is not seen where a function has been traced before.

    Args:
      graph: The graph of a `tf.function`.
      resources: Handles of variables, a list.
      first: Number of the first of the graph's operations to look at.

    Returns:
      A list of bools.
    """
    names = [
        private_tensorflow.name_in(graph, resource) for resource in resources
    ]
    calls = [
        (called, _place(operation.type, k), tensor.name)
        for operation in graph.get_operations()[first:]
        for k, tensor in enumerate(operation.inputs)
        if tensor.name in names
        for called in functions_of(operation.node_def)
    ]
    if not calls:
        return [False] * len(names)
    library = graph.as_graph_def().library.function
    functions, known = {one.signature.name: one for one in library}, {}
    assigned = {
        name
        for called, place, name in calls
        if _assigns(functions, known, called, place)
    }
    return [name in assigned for name in names]


def functions_of(node):
    """Names of the functions that a `NodeDef` calls."""
    for value in node.attr.values():
        for function in [value.func, *value.list.func]:
            if function.name:
                yield function.name


def _place(operation, number):
    """The argument of a function that an input of its caller is."""
    # The first input of a conditional is its condition.
    return number - 1 if operation in _CONDITIONALS else number


def _assigns(functions, known, name, number):
    """Whether a function, or one that it calls, assigns an argument.

    Args:
      functions: The `FunctionDef`s by name.
      known: What was found before, a dict.
      name: Of the function.
      number: Of the argument.
    """
    if (name, number) not in known:
        function = functions[name]
        arguments = function.signature.input_arg
        # Some operations have other inputs as well as their function's.
        argument = arguments[number].name if number < len(arguments) else None
        known[name, number] = any(
            node.op.startswith(ASSIGNING)
            or any(
                _assigns(functions, known, called, _place(node.op, k))
                for called in functions_of(node)
            )
            for node in function.node_def
            for k, one in enumerate(node.input)
            if one == argument
        )
    return known[name, number]
