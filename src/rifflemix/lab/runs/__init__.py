"""Parts that long commands share: folder, status, environment, device, measures of cost."""
