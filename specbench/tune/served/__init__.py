"""Draft sizes of serving engines by load: predicted, measured beside plain decoding, and chosen."""
