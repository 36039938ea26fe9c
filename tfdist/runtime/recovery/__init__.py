"""Recovery of servers that are lost and come back."""
