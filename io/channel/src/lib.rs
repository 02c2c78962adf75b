//! Point-to-point shared-memory channels: two rings, doorbells, a lifeline.
