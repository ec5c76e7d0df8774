"""Which token is drawn and which drafts pass: pure tensor functions."""
