"""Modules of methods that other rooms use too, such as acceptance profiles."""
