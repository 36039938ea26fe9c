"""Variables: a primary on a server, a replica on each worker, and names."""
