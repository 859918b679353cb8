"""One line for each framework; a framework is imported only when its module is."""
