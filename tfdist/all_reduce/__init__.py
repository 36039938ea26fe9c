"""Synchronous training without servers: each worker is plain Keras.

Variables are the layers' own and Keras's own optimizer acts on them; what
enters its `apply` is the mean over the workers. `extended` is what Keras
calls, `step` one training step, `lane` the reduction of one optimizer's
gradients, `collectives` the operations between processes, `fit` the rounds of
one call of `fit`, `consistency` the checks that all workers hold the same.
"""
