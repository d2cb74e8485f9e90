"""Tasks with generated data: sorting, point clouds, ListOps, Pathfinder and recall."""
