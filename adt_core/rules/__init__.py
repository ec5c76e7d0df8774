"""Sampling, draft trees and acceptance as pure tensor functions, and the settings and statistics of a run."""
