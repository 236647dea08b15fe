"""A model's construction, weights, state and seeds, the same for reference and candidate."""
