//! The services compiled into Skein.

pub mod developer;
