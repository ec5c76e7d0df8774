"""How large the next tree is."""
