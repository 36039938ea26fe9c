"""Traffic between servers and replicas outside training steps."""
