"""What should happen: constructions, certified floors, predicted head counts, fits, and the claims."""
