"""Complete requests with the engine in this process."""
