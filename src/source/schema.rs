//! Placeholder: see the module's author.
