"""Tune serving engines: predict, measure and choose the size of drafts at each load."""
