"""What users test their agents with: fake time, scripted models, and the suite any store must pass."""
