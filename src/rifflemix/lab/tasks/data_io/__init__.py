"""Files of data: find, fetch, read within bounds, decode once, keep."""
