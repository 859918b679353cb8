"""Several ranks: parameters that they share, and matrices that one of them owns."""
