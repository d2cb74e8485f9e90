"""The parts that pages, tables and pictures are made of."""
