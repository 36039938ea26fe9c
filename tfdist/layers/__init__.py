"""Keras layers whose weights live on parameter servers."""

from tfdist.layers.dynamic_embedding import DynamicEmbedding

__all__ = ["DynamicEmbedding"]
