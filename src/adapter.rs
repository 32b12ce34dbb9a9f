//! Between protocols and our own words. Owns no session; a connection of it ends with what was offered on it.

pub mod attach;
pub mod export;
