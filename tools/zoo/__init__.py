"""Programs that made the embedded model `tiny`: its text, its tokenizer and its training."""
