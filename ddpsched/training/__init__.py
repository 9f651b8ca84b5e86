"""StepPlan in, gradients and records out; torch lives here."""
