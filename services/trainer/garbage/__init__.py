"""What is no longer kept: deletions of jobs and checkpoints, retention, and what killed processes have left."""
