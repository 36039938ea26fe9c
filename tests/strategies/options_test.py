"""What presets show of the arguments that all strategies have."""

import inspect

import pytest

import tfdist
from tfdist.strategies import options

BASE = inspect.signature(tfdist.ParameterServerStrategy).parameters
AXES = {"synchronization", "correction", "local_steps"}
PRESETS = [
    thing
    for name in tfdist.__all__
    if isinstance(thing := getattr(tfdist, name), type)
    and issubclass(thing, tfdist.ParameterServerStrategy)
    and thing not in (tfdist.ParameterServerStrategy, tfdist.AllReduceStrategy)
]


def test_the_options_are_those_of_the_strategy():
    assert set(options.Options.__annotations__) == set(BASE) - AXES


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_show_all_arguments_with_their_defaults(preset):
    shown = inspect.signature(preset).parameters
    assert set(BASE) - AXES <= set(shown)
    for name, parameter in shown.items():
        assert parameter.kind != parameter.VAR_KEYWORD, name
        if name in BASE:
            assert parameter.default == BASE[name].default, name
    missing = AXES - set(shown)
    assert len(missing) == 1
    for name in missing:
        with pytest.raises(TypeError, match=name):
            preset(**{name: None})


@pytest.mark.parametrize(
    ("strategy", "own"),
    [
        (tfdist.AllReduceStrategy, set()),
        (tfdist.GossipStrategy, set()),
        (
            tfdist.PeerToPeerStrategy,
            {"compression", "warmup_peers", "warmup_updates"},
        ),
    ],
)
def test_without_servers_nothing_is_shown_that_is_about_them(strategy, own):
    shown = inspect.signature(strategy).parameters
    assert set(shown) == set(options.WithoutServers.__annotations__) | own
    for name in ("synchronization", "communication"):
        with pytest.raises(TypeError, match=name):
            strategy(**{name: None})
    with pytest.raises(TypeError, match=r"FaultTolerance\(start_timeout=...\)"):
        strategy(start_timeout=9.0)


def test_a_users_own_preset_shows_what_it_takes():
    class Mine(tfdist.DiLoCoStrategy):
        def __init__(self, period):
            super().__init__(period)

    assert list(inspect.signature(Mine).parameters) == ["period"]


def test_a_strategy_shows_its_method_and_its_cluster():
    assert repr(tfdist.SoftSyncStrategy(3)) == (
        "<SoftSyncStrategy: SoftSync(s=3); one process>"
    )
    assert "Sync(" in repr(tfdist.AllReduceStrategy())
