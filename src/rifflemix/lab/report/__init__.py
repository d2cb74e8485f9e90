"""Building blocks of pages, tables and figures."""
