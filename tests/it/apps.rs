//! Apps through the program.
