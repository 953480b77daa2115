"""Models by name: cards, checkpoints, chat templates and memory. No weights are loaded here."""
