"""A client that follows docs/wire.md and docs/wire-costs.md alone, as a stranger would write it.

It imports nothing of the package. `test_stranger.py` runs it on all vectors of a client, and against real servers. If
it needs to know more than the documents say, mend the documents.
"""
