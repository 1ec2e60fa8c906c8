"""PUBLIC: what a deployment offers, the tickets for it, and the bytes of every message."""
