"""Operators: functions on tensors, one folder per family."""
