"""All parties in one process: for tests, experiments and notebooks."""
