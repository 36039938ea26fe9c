"""Asynchronous training without servers: workers send each other updates.

Each worker is plain Keras with a replica and an optimizer of its own.
`all_reduce` has most of what lies around a step; what is here is the way of an
update from one worker to the others. `lane` is one training step, `channel`
encodes its update and applies those of others, `transport` hands messages to a
`sender` for each other worker, `backlog` holds what a slow one has not taken.
`meetings` are the places where workers wait for each other: where `fit` begins
and ends. At the end of an epoch, `epoch_check` looks whether a replica is the
sum of all updates; `repair` makes it that of another worker otherwise. `roster`
knows who is still there.
"""
