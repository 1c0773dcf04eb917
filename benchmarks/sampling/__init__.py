"""What a user waits for draws: samplers side by side, on the same posteriors."""
