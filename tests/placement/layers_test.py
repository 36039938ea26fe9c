"""Names of layers, and the rules that name them."""

import pytest

from tests.placement import zoo
from tfdist.placement import layers


def chosen(name, rules):
    model, _ = zoo.build(name)
    return layers.choose(layers.parts(model), rules)


def test_parts_are_listed_once_with_their_paths():
    model, _ = zoo.build("nested")
    parts = {part.path: part for part in layers.parts(model)}
    assert parts[""].layer is model
    assert parts["inner"].parent == ""
    assert parts["inner/inside"].parent == "inner"
    # `inner_out + inner_in` is an operation of the nested model.
    (operation,) = [path for path in parts if path.startswith("inner/add")]
    assert parts[operation].parent == "inner"
    assert "head" in parts


def test_a_name_beats_a_pattern_and_a_later_pattern_an_earlier_one():
    rules = {"normal": 1, "*": 2, "c*": 3, "head": 4}
    assert chosen("convnet", rules) == {
        "conv": 3,
        "normal": 1,
        "relu": 2,
        "pool": 2,
        "flat": 2,
        "head": 4,
    }


@pytest.mark.nightly
def test_a_path_names_one_of_several_layers_of_one_name():
    assert chosen("transformer", {"block_1/wide": 1}) == {"block_1/wide": 1}
    assert set(chosen("transformer", {"wide": 1})) == {
        "block_0/wide",
        "block_1/wide",
    }
    assert set(chosen("transformer", {"*/norm": 1})) == {
        "block_0/norm",
        "block_1/norm",
    }


def test_the_model_itself_has_a_name():
    model, _ = zoo.build("mlp")
    found = layers.choose(layers.parts(model), {model.name: 1, "drop": 2})
    assert found == {"": 1, "first": 1, "drop": 2, "last": 1}


def test_what_a_part_is_made_of_goes_with_it():
    rules = {"*": 1, "block_0": 2, "block_1": 3, "block_1/wide": 4}
    found = chosen("transformer", rules)
    assert found["block_0/norm"] == found["block_0/attention"] == 2
    assert found["block_1/norm"] == 3
    assert found["block_1/wide"] == 4
    assert found["head"] == 1


@pytest.mark.parametrize("pattern", ["frist", "block_2*", "wide/norm"])
def test_what_names_nothing_is_refused(pattern):
    with pytest.raises(ValueError, match="There are: .*block_0/attention"):
        chosen("transformer", {pattern: 1})
