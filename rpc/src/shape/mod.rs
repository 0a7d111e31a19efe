//! What types look like on the wire: every field and variant by name, order and kind.
//!
//! ```text
//!  #[derive(Shape)] ─► Shapes (one table a method) ─► Schema ─┬─► fingerprint ─► the method's signature on the wire
//!                                                             ├─► difference ─► the words of a mismatch
//!                                                             ├─► reading ─► whether named types that differ still fit
//!                                                             └─► reflection ─► `gimmal call`, `gimmal describe`
//! ```
//! A schema is made once for each method, when its service's table of methods is first used. No call looks at it.

mod difference;
mod fingerprint;
mod fit;
mod reading;
mod schema;
mod shapes;
mod spell;
#[expect(clippy::disallowed_types, reason = "users send times of the wall clock; nothing here reads it")]
mod std_types;

pub use schema::{Contents, Field, Schema, Type, TypeRef, Variant};
pub use shapes::{Describe, Describing, Form, Shape, Shapes};
