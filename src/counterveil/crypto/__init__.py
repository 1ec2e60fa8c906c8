"""Randomness, secret sharing, keys and signatures, packages of records, garbled gates."""
