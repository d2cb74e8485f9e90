"""Everything that trains, measures and reports. The library never imports it."""
