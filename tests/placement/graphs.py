"""What a traced graph says of its operations."""

# By TensorFlow, with the variable that an operation is about.
COLOCATED = "colocated"


def nodes(graph):
    """(name, type, device) of every operation, also inside loops.

    An operation inside a loop that has no device of its own is where the
    loop is.
    """
    definition = graph.as_graph_def()
    called = definition.library
    functions = {f.signature.name: f for f in called.function}

    def visit(node_defs, prefix, outer):
        for node in node_defs:
            device = node.device or outer
            if not node.device and "_class" in node.attr:
                device = COLOCATED
            yield prefix + node.name, node.op, device
            for attribute in node.attr.values():
                if attribute.func.name in functions:
                    yield from visit(
                        functions[attribute.func.name].node_def,
                        f"{prefix}{node.name}/",
                        device,
                    )

    return list(visit(definition.node, "", ""))
