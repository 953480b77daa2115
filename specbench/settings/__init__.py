"""Choose the settings of methods: by the user, from files, or for the machine of a run."""
