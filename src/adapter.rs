//! Between protocols and our own words. Owns no connection and no session.

pub mod export;
