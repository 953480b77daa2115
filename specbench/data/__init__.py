"""Tasks and their prompts. No model is known here."""
