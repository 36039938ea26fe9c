"""The old name of `tfdist.strategies` and `tfdist.runtime`, for one release."""

raise ImportError(
    "`tfdist.parameter_server` is gone. Strategies are `tfdist.AsyncStrategy` "
    "and so on; their modules are in `tfdist.strategies`, what carries them "
    "out is in `tfdist.runtime`."
)
