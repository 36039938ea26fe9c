"""K local steps between two exchanges."""
