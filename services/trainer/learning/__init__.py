"""What needs torch: the query encoder, the objectives, the loop and the export. Runs in a child of the trainer only."""
