"""What is run, and the run: tasks, prompts, models, plan, runner, store, doctor."""
