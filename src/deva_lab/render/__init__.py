"""Tables, figures and pages of results, and what a terminal shows while runs go on."""
