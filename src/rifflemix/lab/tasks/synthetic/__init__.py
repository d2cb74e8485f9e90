"""Tasks with generated data: sequence sorting and point clouds."""
