"""`specbench compare`: two or more runs side by side."""
