"""Where draft tokens come from."""
