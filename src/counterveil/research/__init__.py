"""How much is given away, how fast it is, and what the papers say."""
