"""Ways to bring a supervised program into being. ``process`` forks it on the machine itself."""
