"""Pathfinder tasks: images of dashed contours, generated or read from files."""
