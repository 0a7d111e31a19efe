//! What a handler returns, as its answer is written.

use std::ops::Deref;

use gimmal_engine::transport::{Bulk, Loan};

use crate::{
    codec::{Encode, EncodeError},
    shape::{Shape, Shapes, TypeRef},
};

/// What a handler returned, as an answer of codec `C`.
pub trait Output<C>: Send {
    /// Whether it is the method's error.
    fn is_error(&self) -> bool;

    /// Writes it into `out`; may be asked again with more room.
    ///
    /// # Errors
    /// See [`EncodeError`].
    fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError>;

    /// See [`Encode::encoded_bytes`].
    fn encoded_bytes(&self) -> Option<usize>;

    /// Returns the bulk that goes with the answer, once.
    fn take_loan(&mut self) -> Option<Loan> {
        None
    }
}

/// A value and a loan of registered memory beside it, which never passes a codec.
///
/// A handler returns a `WithLoan<T>`; its caller gets a `WithLoan<T, Bulk>`, which derefs to the bytes of the loan.
///
/// ```
/// # use gimmal_rpc as gimmal;
/// use gimmal::{Client, Cx, Server, WithLoan};
///
/// # #[gimmal::service(crate = gimmal_rpc)]
/// # trait Blocks { async fn get(&self, cx: &Cx, bytes: u32) -> Result<WithLoan<u32>, String>; }
/// struct Disk;
///
/// impl Blocks for Disk {
///     async fn get(&self, cx: &Cx, bytes: u32) -> Result<WithLoan<u32>, String> {
///         let mut loan = cx.loan(bytes as usize).map_err(|error| error.to_string())?;
///         loan.fill(7);
///         Ok(WithLoan::new(1, loan))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let _server = Server::builder().service(serve_blocks(Disk)).listen("mem://doc-with-loan")?;
/// let client = BlocksClient::new(Client::connect("mem://doc-with-loan")?);
/// let block = client.get(1 << 20).wait()?;
/// assert_eq!((block.value, block.len(), block[0]), (1, 1 << 20, 7));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct WithLoan<T, L = Loan> {
    /// The value, which the codec writes.
    pub value: T,
    /// The memory: a [`Loan`] of the handler's, a [`Bulk`] at its caller.
    pub loan: Option<L>,
}

/// The loan does not pass the codec.
impl<T: Shape, L> Shape for WithLoan<T, L> {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        T::shape(shapes)
    }
}

impl<T> WithLoan<T> {
    /// Makes a result or an argument of `value` with `loan` beside it.
    pub const fn new(value: T, loan: Loan) -> Self {
        Self { value, loan: Some(loan) }
    }

    /// Makes a result or an argument of `value` without memory beside it: its reader finds no bytes.
    pub const fn without(value: T) -> Self {
        Self { value, loan: None }
    }
}

/// The bytes of the loan, none if there is no loan: read where the server has them, or brought by RDMA READ. To drop this
/// gives the server its memory back.
impl<T> Deref for WithLoan<T, Bulk> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.loan.as_deref().unwrap_or_default()
    }
}

/// A plain answer.
#[derive(Debug)]
pub struct Plain<T>(pub T);

impl<C: Encode<T>, T: Send> Output<C> for Plain<T> {
    #[inline]
    fn is_error(&self) -> bool {
        false
    }

    #[inline]
    fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        C::encode(&self.0, out)
    }

    fn encoded_bytes(&self) -> Option<usize> {
        C::encoded_bytes(&self.0)
    }
}

impl<C: Encode<T>, T: Send> Output<C> for WithLoan<T> {
    #[inline]
    fn is_error(&self) -> bool {
        false
    }

    #[inline]
    fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        C::encode(&self.value, out)
    }

    fn encoded_bytes(&self) -> Option<usize> {
        C::encoded_bytes(&self.value)
    }

    fn take_loan(&mut self) -> Option<Loan> {
        self.loan.take()
    }
}

/// An answer or the method's error.
#[derive(Debug)]
pub struct Fallible<O, E>(pub Result<O, E>);

impl<C: Encode<E>, O: Output<C>, E: Send> Output<C> for Fallible<O, E> {
    #[inline]
    fn is_error(&self) -> bool {
        self.0.is_err()
    }

    #[inline]
    fn encode(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        match &self.0 {
            Ok(output) => output.encode(out),
            Err(error) => C::encode(error, out),
        }
    }

    fn encoded_bytes(&self) -> Option<usize> {
        match &self.0 {
            Ok(output) => output.encoded_bytes(),
            Err(error) => C::encoded_bytes(error),
        }
    }

    fn take_loan(&mut self) -> Option<Loan> {
        self.0.as_mut().ok().and_then(Output::take_loan)
    }
}
