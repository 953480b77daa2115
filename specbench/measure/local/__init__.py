"""Completing prompts with the engine in this process."""
