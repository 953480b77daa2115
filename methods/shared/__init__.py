"""Parts of the methods that other packages use too: checkpoints, datastores, trees, and options."""
