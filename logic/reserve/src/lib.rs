//! Reservations: what is promised, whether it can be kept, and who has to give; without a clock.
