"""The machine: hardware, versions, bandwidth and GPU counters."""
