"""Local checkpoints (LCP): scan, data files, control files."""
