"""Backends: whatever completes requests and says what it is."""
