//! How types say what they look like, and how the schema of a method is made of that.

use std::{any::TypeId, collections::HashMap, marker::PhantomData};

use super::schema::{Field, Schema, Type, TypeRef};

/// What a codec puts on the wire of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Values in order, without names: every difference of two types counts.
    Positional,
    /// Structs and enums with names: their fields and variants may change.
    Named,
    /// Bytes that the codec does not understand.
    Bytes,
}

/// A type that says how serde writes it: `#[derive(Shape)]` beside serde's derives, whose attributes it reads.
///
/// Two sides compare the shapes of a method's types, so that they never read each other's values as something else.
///
/// ```
/// # mod gimmal { pub use gimmal_rpc::*; }
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize, gimmal_rpc::Shape)]
/// #[shape(crate = gimmal_rpc)] // not needed with the crate `gimmal`
/// struct Order {
///     id: u64,
///     cents: u64,
///     #[shape(opaque = "Duration@1")] // a foreign type, or one with `#[serde(with)]`
///     patience: std::time::Duration,
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no shape, which both sides of a call compare",
    label = "add `#[derive(gimmal::Shape)]` to `{Self}`",
    note = "where the type is foreign, wrap it: a field with `#[shape(opaque = \"name@1\")]` is compared by that name"
)]
pub trait Shape {
    /// Returns the type's place in the table, in which it puts itself and the types that it holds.
    fn shape(shapes: &mut Shapes) -> TypeRef;
}

/// The table that types put themselves in: each once, also where it holds itself.
#[derive(Debug, Default)]
pub struct Shapes {
    types: Vec<Type>,
    places: HashMap<TypeId, TypeRef>,
    needs_names: Vec<String>,
}

impl Shapes {
    /// Returns the place of `T`, which is described if it is not there.
    pub fn put<T: ?Sized>(&mut self, describe: impl FnOnce(&mut Self) -> Type) -> TypeRef {
        let id = typeid::of::<T>();
        if let Some(place) = self.places.get(&id) {
            return *place;
        }
        let place = self.types.len();
        let at = TypeRef(u32::try_from(place).unwrap_or(u32::MAX));
        self.places.insert(id, at);
        self.types.push(Type::Unknown);
        let described = describe(self);
        self.types[place] = described;
        at
    }

    /// Returns the type at `at`; [`Type::Unknown`] while it is being described.
    #[must_use]
    pub fn get(&self, at: TypeRef) -> &Type {
        usize::try_from(at.0).ok().and_then(|at| self.types.get(at)).unwrap_or(&Type::Unknown)
    }

    /// Returns the place of a type whose contents nobody here knows: it is compared by `name`, which should have a version.
    pub fn opaque(&mut self, name: &str) -> TypeRef {
        let opaque = Type::Opaque(name.to_owned());
        let place = self.types.iter().position(|ty| *ty == opaque).unwrap_or_else(|| {
            self.types.push(opaque);
            self.types.len() - 1
        });
        TypeRef(u32::try_from(place).unwrap_or(u32::MAX))
    }

    /// Notes that a type has `attribute`, which only a codec with named fields can carry.
    pub fn needs_names(&mut self, attribute: &str) {
        self.needs_names.push(attribute.to_owned());
    }
}

/// A codec that says what it writes for a `T`, so that both sides can compare it.
pub trait Describe<T: ?Sized> {
    /// Returns the place in the table of what this codec writes for a `T`.
    fn describe(shapes: &mut Shapes) -> TypeRef;
}

/// Makes a method's schema: `#[service]` names its types one by one.
#[derive(Debug)]
pub struct Describing<C> {
    shapes: Shapes,
    schema: Schema,
    codec: PhantomData<C>,
}

impl<C> Default for Describing<C> {
    fn default() -> Self {
        Self { shapes: Shapes::default(), schema: Schema::default(), codec: PhantomData }
    }
}

impl<C> Describing<C> {
    fn of<T: ?Sized>(&mut self) -> TypeRef
    where
        C: Describe<T>,
    {
        C::describe(&mut self.shapes)
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument<T: ?Sized>(mut self, name: &str) -> Self
    where
        C: Describe<T>,
    {
        let ty = self.of::<T>();
        self.schema.arguments.push(Field::plain(name, ty));
        self
    }

    /// Sets the answer.
    #[must_use]
    pub fn answer<T: ?Sized>(mut self) -> Self
    where
        C: Describe<T>,
    {
        self.schema.answer = Some(self.of::<T>());
        self
    }

    /// Sets the error.
    #[must_use]
    pub fn error<T: ?Sized>(mut self) -> Self
    where
        C: Describe<T>,
    {
        self.schema.error = Some(self.of::<T>());
        self
    }

    /// Sets the items that the caller streams.
    #[must_use]
    pub fn up<T: ?Sized>(mut self) -> Self
    where
        C: Describe<T>,
    {
        self.schema.up = Some(self.of::<T>());
        self
    }

    /// Sets the items that the handler streams.
    #[must_use]
    pub fn down<T: ?Sized>(mut self) -> Self
    where
        C: Describe<T>,
    {
        self.schema.down = Some(self.of::<T>());
        self
    }

    /// Sets whether bulk goes with the request, and with the answer.
    #[must_use]
    pub fn bulk(mut self, takes: bool, gives: bool) -> Self {
        (self.schema.takes_bulk, self.schema.gives_bulk) = (takes, gives);
        self
    }

    /// Returns the schema, which lives as long as the process.
    #[must_use]
    pub fn done(self) -> &'static Schema {
        let Self { shapes: Shapes { types, needs_names, .. }, schema, .. } = self;
        Box::leak(Box::new(Schema { types, needs_names, ..schema }))
    }
}

#[cfg(test)]
mod tests {
    use gimmal_transport::testing::{BuilderCall, no_call_undoes_another};

    use super::*;

    struct Plain;

    impl<T: Shape> Describe<T> for Plain {
        fn describe(shapes: &mut Shapes) -> TypeRef {
            T::shape(shapes)
        }
    }

    #[test]
    fn no_part_of_a_schema_undoes_another() {
        let calls: &[BuilderCall<Describing<Plain>>] = &[
            ("argument", |describing| describing.argument::<u8>("a")),
            ("answer", Describing::answer::<u8>),
            ("error", Describing::error::<u8>),
            ("up", Describing::up::<u8>),
            ("down", Describing::down::<u8>),
            ("bulk", |describing| describing.bulk(true, false)),
        ];
        no_call_undoes_another(Describing::default, calls, |describing| format!("{:?}", describing.done()));
    }
}
