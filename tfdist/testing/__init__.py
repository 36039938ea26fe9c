"""Aids for tests of distributed training: workers slow on purpose."""

from tfdist.testing.straggler import Straggler

__all__ = ["Straggler"]
