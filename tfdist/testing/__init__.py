"""What tests of distributed training need: workers that are slow on purpose."""

from tfdist.testing.straggler import Straggler

__all__ = ["Straggler"]
