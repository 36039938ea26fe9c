"""Pipelines: the stages of one model on several devices work at once."""

from tfdist.pipeline.pipelined import pipeline

__all__ = ["pipeline"]
