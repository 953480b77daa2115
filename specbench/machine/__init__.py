"""Describe and measure the machine: its hardware, versions, bandwidth and counters."""
