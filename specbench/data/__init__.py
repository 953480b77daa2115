"""Tasks and their prompts."""
