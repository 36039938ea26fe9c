"""Keras layers for embeddings whose weights live on parameter servers."""

from tfdist.layers.dynamic_embedding import DynamicEmbedding
from tfdist.layers.embedding_bag import EmbeddingBag

__all__ = ["DynamicEmbedding", "EmbeddingBag"]
