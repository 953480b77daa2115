"""What the published heads have in common, whatever their target."""

NUM_MEDUSA_HEADS = 5
EAGLE3_DRAFT_VOCAB = 32_000
