"""Exchange between workers alone, by ring collectives."""
