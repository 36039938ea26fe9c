"""What the benchmark scripts have in common, and the peers they measure."""
