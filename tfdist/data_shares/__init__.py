"""Each worker's share of the data that Keras trains on."""
