"""PUBLIC: what a deployment offers, tickets for it, and the bytes of every message."""
