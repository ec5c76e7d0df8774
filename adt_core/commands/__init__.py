"""Parts of the command line that nothing else uses."""
