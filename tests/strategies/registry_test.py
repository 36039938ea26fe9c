"""Names of methods: one registry, and the texts that name its entries."""

import inspect
import sys
import textwrap

from hypothesis import given
from hypothesis import strategies as st
import pytest

from tests import waits
from tests.strategies import registered
import tfdist
from tfdist import correction
from tfdist import method_text
from tfdist import synchronization
from tfdist.method_text import Spec
from tfdist.simulation.methods import as_method
from tfdist.strategies import catalogue
from tfdist.strategies import entry as entry_lib
from tfdist.strategies import registry

ENTRIES = {entry.name: entry for entry in catalogue.ENTRIES}
PRESETS = [name for name, entry in ENTRIES.items() if entry.preset]


@pytest.fixture(autouse=True)
def as_before():
    """Forgets what a test has registered."""
    with registered.forgotten():
        yield


@pytest.mark.parametrize("name", ENTRIES)
def test_every_name_alone_makes_a_method(name):
    entry = ENTRIES[name]
    method = registry.method(name).resolve(4)
    assert method.name == name
    assert entry_lib.axis_of(type(getattr(method, entry.axis))) == entry.axis
    assert entry.help and len(entry.help) < 60
    assert entry.paper or name == "sync"


def test_every_class_has_a_name():
    named = {type(registry.get(name).make()) for name in registry.names()}
    for module in (synchronization, correction, tfdist.averaging):
        for name in module.__all__:
            one = getattr(module, name)
            if inspect.isclass(one) and not inspect.isabstract(one):
                try:
                    entry_lib.axis_of(one)
                except TypeError:
                    continue
                assert one in named, name


@pytest.mark.parametrize("name", PRESETS)
def test_presets_and_names_are_the_same_methods(name):
    preset = getattr(tfdist, ENTRIES[name].preset)
    assert as_method(preset()) == registry.method(name)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_show_the_defaults_of_the_registry(name):
    preset = getattr(tfdist, ENTRIES[name].preset)
    base = inspect.signature(tfdist.ParameterServerStrategy).parameters
    settings = ENTRIES[name].settings
    own = {
        key: parameter.default
        for key, parameter in inspect.signature(preset).parameters.items()
        # Of an optimizer that is an object flags give the numbers.
        if key not in base and key != "outer_optimizer"
    }
    assert own == {key: settings[key] for key in own}


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.from_regex(r"\A[a-z_]+\Z").filter(
        lambda text: (
            text not in ("none", "true", "false")
            and not isinstance(method_text._value(text), float)
        )
    ),
)
NAMES = st.from_regex(r"\A[a-z][a-z_0-9]*\Z")
SPECS = st.recursive(
    st.builds(Spec, NAMES, st.dictionaries(NAMES, SCALARS, max_size=3)),
    lambda inner: st.builds(
        Spec, NAMES, st.dictionaries(NAMES, SCALARS | inner, max_size=3)
    ),
    max_leaves=5,
)


@given(spec=SPECS)
def test_a_text_says_what_it_was_made_of(spec):
    assert method_text.parse(str(spec)) == spec
    # With parentheses, too.
    assert method_text.parse(spec.nested) == spec


@given(specs=st.lists(SPECS, min_size=1))
def test_commas_of_a_list_are_not_those_of_a_method(specs):
    texts = [str(spec) for spec in specs]
    assert registry.split(",".join(texts).split(",")) == texts


@given(text=st.text())
def test_whatever_the_text_it_is_a_method_or_refused_with_it(text):
    try:
        registry.method(text)
    except ValueError as error:
        assert "Received: " in str(error)


@pytest.mark.parametrize(
    ("text", "synchronization_", "correction_"),
    [
        ("softsync:s=2", synchronization.SoftSync(2), None),
        ("softsync(s=2)", synchronization.SoftSync(2), None),
        (
            "softsync(s=2, correction=gap_aware)",
            synchronization.SoftSync(2),
            correction.GapAware(),
        ),
        (
            "async:correction=dc_asgd(lambda_0=1,variance_decay=0.5)",
            synchronization.Async(),
            correction.DelayCompensation(1.0, 0.5),
        ),
        (
            "dana:variant=zero:synchronization=softsync(s=3)",
            synchronization.SoftSync(3),
            correction.DANA("zero"),
        ),
        ("async:correction=none", synchronization.Async(), None),
        (
            "sync:backup_workers=1:on_drop=retry",
            synchronization.Sync(1, on_drop="retry"),
            None,
        ),
    ],
)
def test_a_text_is_the_method_that_it_names(
    text, synchronization_, correction_
):
    method = registry.method(text)
    assert method.synchronization == synchronization_
    assert method.correction == correction_
    assert method.name == text


# Text -> what its method says of itself with four workers.
LOCAL_STEPS = {
    "parameter_averaging": ["period=10,", "warmup_steps=0,"],
    "parameter_averaging:period=7:average_optimizer_state=true": [
        "period=7,",
        "average_optimizer_state=True,",
    ],
    "parameter_averaging:warmup_steps=30": ["warmup_steps=30,"],
    # 1 - 1 / 4.
    "bmuf": ["period=50,", "momentum=0.75,", "reset_momentum=True,"],
    "bmuf:block_momentum=0.5:warmup_steps=9": [
        "momentum=0.5,",
        "warmup_steps=9,",
    ],
    "diloco": [
        "period=500,",
        "SGD(",
        "learning_rate=0.7,",
        "momentum=0.9,",
        "nesterov=True",
    ],
    "diloco:period=20:outer_learning_rate=0.5:outer_momentum=0": [
        "period=20,",
        "learning_rate=0.5,",
        "momentum=0,",
    ],
    "async_local_sgd": ["period=50,", "DelayedNesterov(", "delay=4,"],
    "async_local_sgd:outer_learning_rate=0.5:outer_momentum=0.8": [
        "learning_rate=0.5,",
        "momentum=0.8,",
    ],
    # 0.9 / 4, and of the whole.
    "easgd": ["period=10,", "alpha=0.225,", "moving_rate=None,"],
    "easgd:moving_rate=0.8:synchronization=sync": [
        "alpha=0.2,",
        "moving_rate=0.8,",
    ],
    "downpour": ["n_fetch=1,", "n_push=1,", "Adagrad(learning_rate=0.01,"],
    "downpour:n_fetch=3:n_push=2:outer_learning_rate=0.5": [
        "n_fetch=3,",
        "n_push=2,",
        "learning_rate=0.5,",
        "initial_accumulator_value=0,",
    ],
}


@pytest.mark.parametrize("text", LOCAL_STEPS)
def test_defaults_and_settings_of_local_steps(text):
    # Each setting ends with a comma here.
    found = repr(registry.method(text).resolve(4).local_steps)
    found = found.replace(")", ",")
    for setting in LOCAL_STEPS[text]:
        assert setting in found


def test_all_settings_of_a_text_can_be_read():
    assert registry.settings("easgd:period=3:synchronization=sync") == {
        "period": 3,
        "moving_rate": None,
        "alpha": None,
        "synchronization": "sync",
    }
    found = registry.settings("async:correction=dana(variant=dc)")
    assert found == {"correction": "dana(variant=dc)"}


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("asink", ["must be one of sync, ", "'asink'", "mean 'async'"]),
        ("softsync:t=2", ["softsync has the settings s=, n=, corr", "'t'"]),
        ("dc_asgd:lamda_0=1", ["'lamda_0'", "mean 'lambda_0'"]),
        ("softsync:s", ["NAME=VALUE", "'s' in 'softsync:s'"]),
        ("softsync:s=1:s=2", ["given once", "'s=2'"]),
        ("softsync(s=2", ["must be a name with", "'softsync(s=2'"]),
        ("async:correction=dana(momentum=0.5", ["closed", "momentum=0.5"]),
        ("", ["must be a name with", "''"]),
        ("async:correction=softsync", ["correction must be one of inverse"]),
        ("async:correction=gap_awar", ["mean 'gap_aware'", "'gap_awar'"]),
        ("async:correction=dana(s=1)", ["dana has the settings variant="]),
        ("dana:correction=fasgd", ["dana has the settings", "'correction'"]),
        ("softsync:s=0", ["'softsync:s=0'", "at least 1"]),
        ("sync:communication=tree", ["parameter_server, ring", "'tree'"]),
        (
            "async:local_steps=0",
            ["`local_steps` must", "'async:local_steps=0'"],
        ),
    ],
)
def test_what_names_no_method_is_refused(text, messages):
    with pytest.raises(ValueError) as raised:
        registry.method(text)
    for message in messages:
        assert message in str(raised.value)


class Mine(synchronization.Async):
    """A method of my own.

    And more about it.
    """

    def __init__(self, speed: float = 1.0):
        self.speed = speed


def test_what_is_registered_has_a_name():
    entry = tfdist.register("mine", Mine, defaults={"speed": 2.0})
    assert entry.help == "A method of my own."
    assert registry.names("synchronization")[-1] == "mine"
    assert "mine" in registry.describe()
    assert registry.method("mine").synchronization.speed == 2.0
    made = registry.method("bmuf:synchronization=mine(speed=3)")
    assert made.synchronization == Mine(3)
    # As by a file that is loaded again, but not as by another file.
    other = type("Mine", (Mine,), {"__module__": "another_module"})
    with pytest.raises(ValueError, match="which is .*registry_test:Mine"):
        tfdist.register("mine", other)
    tfdist.register("mine", Mine)
    assert registry.method("mine").synchronization.speed == 1.0


def test_a_function_is_registered_for_an_axis():
    tfdist.register(
        "slim",
        lambda momentum=0.5: correction.DANA("slim", momentum),
        axis="correction",
        defaults={"synchronization": "softsync", "momentum": 0.25},
        help="half",
    )
    method = registry.method("slim")
    assert method.correction == correction.DANA("slim", 0.25)
    assert method.synchronization == synchronization.SoftSync()
    assert registry.method("slim:synchronization=none").synchronization == (
        synchronization.Async()
    )


def test_variants_are_what_advise_tries():
    tfdist.register("mine", Mine, variants=lambda workers: [{"speed": workers}])
    assert registry.variants("mine", 3) == ["mine:speed=3"]
    assert registry.variants("mine:speed=2", 3) == ["mine:speed=2"]
    assert registry.variants("backup_workers", 3) == []
    assert len(registry.variants("backup_workers", 8)) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("async", Mine), ValueError, "not taken.*'async'.*asynch|not taken"),
        (("my-method", Mine), ValueError, "letters, digits and underscores"),
        (("none", Mine), ValueError, "must not be one of none"),
        (("mine", Mine()), TypeError, "a class or a function"),
        (("mine", lambda: Mine()), TypeError, "`axis` must be given"),
        (("mine", dict), TypeError, "`axis` must be given"),
        (
            ("mine", lambda speed: Mine(speed), "synchronization"),
            TypeError,
            "a default for each setting.*'speed'",
        ),
        (("mine", Mine, "method"), ValueError, "`axis` must be one of sync"),
        (
            ("mine", Mine, None, {"sped": 1}),
            ValueError,
            "settings of the factory .speed.*Received: 'sped'",
        ),
    ],
)
def test_what_cannot_be_registered_is_refused(arguments, error, message):
    name, factory, axis, defaults = [*arguments, None, None][:4]
    with pytest.raises(error, match=message):
        tfdist.register(name, factory, axis=axis, defaults=defaults)
    assert set(registry.names()) == set(ENTRIES)


def test_a_factory_of_something_else_is_refused():
    tfdist.register("mine", lambda: 3, axis="correction")
    with pytest.raises(ValueError, match="must make a .*Correction.*made 3"):
        registry.method("mine")


def install(directory, monkeypatch, name, code):
    """Makes a package as pip does, with an entry point, in a directory."""
    (directory / f"{name}.py").write_text(textwrap.dedent(code))
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Name: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{registry.ENTRY_POINTS}]\n{name} = {name}\n"
    )
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setattr(registry, "_installed_are_loaded", False)


def test_methods_of_installed_packages_are_there(tmp_path, monkeypatch):
    code = """
        import tfdist
        from tfdist.synchronization import Async

        class Theirs(Async):
            pass

        tfdist.register("theirs", Theirs, help="of another package")
        """
    install(tmp_path, monkeypatch, "their_methods", code)
    assert "theirs" in registry.names()
    assert type(registry.method("theirs").synchronization).__name__ == "Theirs"


def test_a_broken_package_leaves_the_other_methods(
    tmp_path, monkeypatch, caplog
):
    install(tmp_path, monkeypatch, "broken_methods", "raise OSError('broken')")
    assert set(registry.names()) == set(ENTRIES)
    assert "broken_methods" in caplog.text and "broken" in caplog.text


def test_names_are_read_without_tensorflow():
    program = (
        "import sys, tfdist\n"
        "from tfdist.cli.main import main\n"
        "tfdist.register\n"
        "for command in ('simulate', 'compare', 'advise'):\n"
        "    assert main([command, '--help']) == 0\n"
        "assert not {'tensorflow', 'keras'} & set(sys.modules)\n"
    )
    result = waits.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    for name, entry in ENTRIES.items():
        assert name in result.stdout and entry.help in result.stdout
