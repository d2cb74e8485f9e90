"""Shared parts of long commands: folder, status, environment, device, time and memory."""
