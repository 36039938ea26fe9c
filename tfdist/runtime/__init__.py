"""The execution of a strategy: one room for each part of the story.

From the bottom up, and nothing imports upward: `variables` (what lives where),
`exchange` (one training step's push and pull), `coordination` (one ordered log
of decisions), `corrections` (staleness corrections at run time), `replicas`
(traffic outside steps), `recovery` (a server that is lost), `local_steps` (K
steps between exchanges), `all_reduce` (no servers), `checkpoint` (save and
resume), `keras_hooks` (all that looks into Keras's calls).
"""
