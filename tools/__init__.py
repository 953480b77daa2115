"""Programs that made what the package ships. They are not part of it."""
