"""Tests that attack: each fails on what it was written against."""
