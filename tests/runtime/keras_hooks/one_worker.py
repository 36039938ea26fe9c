"""One worker's `ChiefDecisions`, with tables that a test writes."""

import functools
import types

import keras
import tensorflow as tf

from tfdist import private_keras_calls
from tfdist import running_fit
from tfdist.cluster import fit_progress
from tfdist.cluster import waiting
from tfdist.cluster.member_table import Member
from tfdist.cluster.member_table import MemberState
from tfdist.runtime.keras_hooks import chief_decisions
from tfdist.runtime.keras_hooks import fit_call
from tfdist.runtime.keras_hooks import queued_work
from tfdist.runtime.variables.variables import Role

NAMES = ("chief", "one", "two", "later")
HERE = tf.config.list_logical_devices("CPU")[0].name
WEIGHT = types.SimpleNamespace(role=Role.PARAMETER, name="weight")


class Worker:
    """A `ChiefDecisions` of a worker, and what it looks at.

    Its table is read from a list, one row of members after the other, the
    last one again and again.
    """

    def __init__(self, number, *tables, arrivals=0, **kwargs):
        """Makes it: the worker of that number."""
        self.reads = 0
        self._tables = tables
        store = types.SimpleNamespace(
            worker_variable=lambda value, name: tf.Variable(value),
            call=lambda function, *args: function(*args),
            pulled_version=lambda shard: self.version,
            variables=[],
            name_of=lambda name: f"{id(self)}/{name}",
            devices=[HERE],
            worker_device=HERE,
        )
        self.runtime = types.SimpleNamespace(
            store=store,
            journal=types.SimpleNamespace(count=0, begun=0),
            wait=functools.partial(
                waiting.wait_while_it_gets_on,
                stalled_after=lambda: 0.3,
                progress=lambda: [0],
            ),
            synchronizer=types.SimpleNamespace(
                writes_pass=True,
                # Others have built all.
                held=lambda: 1,
            ),
            state=types.SimpleNamespace(is_on_servers=False),
            committed=0,
            has_come_back=lambda: False,
            is_held=lambda: False,
            commit=lambda: None,
            settle=lambda: True,
            local=None,
            coordination=None,
            work=queued_work.NoQueuedWork(),
            unused_models=types.SimpleNamespace(refuse=lambda variables: None),
        )
        self.version = 0
        self.membership = membership = types.SimpleNamespace(
            fits=fit_progress.Fits(),
            read=self._read,
            tell=lambda: None,
            arrivals=arrivals,
            is_awaited_by=lambda member: member.arrivals > membership.arrivals,
            former=None,
            arrive=lambda: setattr(
                membership, "arrivals", membership.arrivals + 1
            ),
            find_former=lambda: None,
            on_beat=[],
            count_along=lambda member: setattr(
                membership, "arrivals", member.arrivals
            ),
        )
        config = types.SimpleNamespace(
            worker_names=NAMES, initial_workers=3, worker_id=number
        )
        self.chief_decisions = chief_decisions.ChiefDecisions(
            self.runtime,
            membership,
            config,
            worker_timeout=10.0,
            start_timeout=60.0,
            **kwargs,
        )

    def _read(self):
        table = self._tables[min(self.reads, len(self._tables) - 1)]
        self.reads += 1
        return table

    def begin(self, number):
        """Is in that call of `fit`; returns it."""

        class Frame:
            f_locals = {"self": keras.Sequential()}

        self.model = Frame.f_locals["self"]
        fit = self.chief_decisions._fit = fit_call.FitCall(Frame, number)
        fit.is_in_loop, fit.frame = True, None
        return fit

    def exchange(self, pulled, **told):
        """Makes an exchange that brings what the chief tells."""
        self.version = pulled
        self.runtime.journal.count += 1
        fit, word = self.chief_decisions._fit, self.chief_decisions.chiefs_word
        word._told.assign(fit_progress.Word(**told).pack())
        word.look(fit)
        return fit


def table(*words, state=MemberState.ALIVE, silent_for=0.0, arrivals=0):
    """A table: the first row is like that, the others train."""
    first, *others = [fit_progress.Word(reached=word) for word in words]
    rows = [Member("chief", state, silent_for, arrivals, word=first)]
    rows += [
        Member("other", MemberState.ALIVE, 0.0, 0, word=word) for word in others
    ]
    rows += [
        Member("other", MemberState.UNKNOWN, float("inf"), 0)
        for _ in NAMES[len(rows) :]
    ]
    return rows


def begin(worker, callbacks=None, ends=False):
    """A call of `fit` begins, and perhaps comes to its end without a step."""
    model = worker.model

    def fit(self, callbacks=callbacks):
        frame = private_keras_calls.current_frame()
        worker.chief_decisions.watch(frame, running_fit.begin(frame))
        if ends:
            running_fit.end(frame)

    fit(model)
