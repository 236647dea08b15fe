"""How long a forward takes, by a clock outside its process; and what a machine can reach."""
