"""Records -> numbers. No model is loaded here and nothing is printed."""
