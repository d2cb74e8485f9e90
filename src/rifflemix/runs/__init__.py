"""What every long command shares: folder, status, environment, device, measures of cost."""
