"""Batch optimization with a coordinator that holds no parameters."""

from tfdist.sandblaster.lbfgs import LBFGS
from tfdist.sandblaster.line_search import Armijo
from tfdist.sandblaster.line_search import FixedStep
from tfdist.sandblaster.line_search import LineSearch
from tfdist.sandblaster.line_search import StrongWolfe

__all__ = ["LBFGS", "Armijo", "FixedStep", "LineSearch", "StrongWolfe"]
