"""What other rooms use of the methods too: checkpoints, datastores, static trees, stored pools."""
