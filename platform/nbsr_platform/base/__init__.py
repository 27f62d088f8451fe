"""What every room needs: printing, signals, secrets, temporary places, and the shape of plain values."""
