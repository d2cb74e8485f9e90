"""Regression tasks on molecules."""
