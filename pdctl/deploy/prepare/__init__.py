"""Making hosts fit for a deployment, one task at a time; each knows when there is nothing to do."""
