"""The command `tfdist`. Nothing here imports TensorFlow."""
