//! Files, shell, plan.
