"""What the tests ask of examples with groups, in a forked process."""

import importlib
import json
import os
import pathlib
import sys

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def refuse(script, cases):
    """Writes the message that each case ends with to `messages.json`.

    Args:
        script: name of a module in `examples/`.
        cases: list of `[TF_CONFIG, flags]`, both strings.
    """
    example = _import(script)
    messages = []
    for tf_config, arguments in cases:
        os.environ["TF_CONFIG"] = tf_config
        example.FLAGS.unparse_flags()
        try:
            example.main(example.FLAGS([script, *arguments.split()]))
        except (Exception, SystemExit) as error:
            messages.append(str(error))
    pathlib.Path("messages.json").write_text(json.dumps(messages))


def deal(num_groups):
    """Writes the text's sequences of all and of each group to `parts.json`."""
    from tfdist.codistillation import Group

    example = _import("codistill_language_model")
    example.FLAGS(["script", "--characters=5000"])
    groups = [None, *(Group(k, num_groups) for k in range(num_groups))]
    parts = [
        [part.tolist() for part in example.load_sequences(group)]
        for group in groups
    ]
    pathlib.Path("parts.json").write_text(json.dumps(parts))


def _import(script):
    sys.path.insert(0, str(EXAMPLES))
    return importlib.import_module(script)
