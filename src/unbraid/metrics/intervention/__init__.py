"""What codes do when one factor is held fixed."""
