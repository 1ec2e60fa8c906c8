"""Tests that attack the system. Each fails on the version that it was written against."""
