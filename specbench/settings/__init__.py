"""Settings of methods: entered methods, files of options, and the quick choice for a machine."""
