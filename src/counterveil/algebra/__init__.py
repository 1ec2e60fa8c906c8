"""Numbers and arrays, and nothing of the protocol."""
