"""`specbench site`: a static page over many runs."""
