//! A call by hand: JSON in, JSON out, by the types that the server tells.

use std::{
    error::Error,
    io::{self, Write as _},
    task::Poll,
    time::Duration,
};

use gimmal_rpc::{
    __macro::{ends, start_streams},
    CallError, CallOptions, Channel as _, Client, Metadata, Method, MethodKind, Raw, ReadError,
    channel::{Beside, Ticket as _},
    codec::Encoded,
    output::{Fallible, Plain},
    reflect::MethodInfo,
    response::{Response, ResponseStatus},
    shape::{Form, Schema, TypeRef},
};
use serde_json::{Map, Value, json};

use super::{
    named,
    read::{self, bytes},
    wire::Wire,
    write::Writer,
};

type Done<T = ()> = Result<T, Box<dyn Error>>;

/// What goes with a call.
#[derive(Debug)]
pub(super) struct Given<'a> {
    pub(super) arguments: &'a [String],
    /// The text of an argument that is bulk.
    pub(super) bulk: Option<&'a str>,
    /// Whether everything that came is printed as one object.
    pub(super) is_whole: bool,
}

/// The method as its own client has it. It lives as long as the process, which makes one call.
fn spoken(info: &MethodInfo) -> &'static Method {
    let leak = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let is_raw = info.kind == "raw";
    let kind = if is_raw { MethodKind::Raw } else { MethodKind::Async };
    let (service, name) = (leak(&info.service), leak(&info.name));
    let mut method = Method::new(service, name, leak(&info.signature), leak(&info.codec), kind);
    if info.kind == "one-way" {
        method = method.one_way();
    }
    if let Some(schema) = &info.schema {
        method = method
            .with_bulk(schema.takes_bulk, schema.gives_bulk)
            .with_streams(schema.up.is_some(), schema.down.is_some())
            .with_schema(form(&info.codec), Box::leak(Box::new(schema.clone())));
    }
    Box::leak(Box::new(method))
}

fn form(codec: &str) -> Form {
    match codec {
        "raw" => Form::Bytes,
        "messagepack" => Form::Named,
        _ => Form::Positional,
    }
}

/// The arguments as the codec writes them. What is wrong is named by the argument, its type and where.
fn arguments(info: &MethodInfo, schema: &Schema, wire: Wire, given: &[String]) -> Done<Vec<u8>> {
    if schema.arguments.len() != given.len() {
        let (wanted, given) = (schema.arguments.len(), given.len());
        let all: Vec<String> = (schema.arguments.iter())
            .map(|argument| format!("{}: {}", argument.name, schema.spelled(argument.ty)))
            .collect();
        let (service, name) = (&info.service, &info.name);
        return Err(format!(
            "{service}.{name}({}) takes {wanted} arguments, {given} were given",
            all.join(", ")
        )
        .into());
    }
    let mut writer = Writer::new(schema, wire);
    for (at, (argument, given)) in schema.arguments.iter().zip(given).enumerate() {
        writer.argument(argument.ty, given).map_err(|wrong| {
            format!("argument {}, {}: {}: {wrong}", at + 1, argument.name, schema.spelled(argument.ty))
        })?;
    }
    if wire == Wire::MessagePack {
        let given = given.iter().map(|given| &given[..]);
        return Ok(named::written(schema, schema.arguments.iter().map(|argument| argument.ty).zip(given))?);
    }
    Ok(writer.out)
}

fn read(schema: &Schema, wire: Wire, at: TypeRef, body: &[u8]) -> Option<Value> {
    match wire {
        Wire::MessagePack => named::read(schema, at, body),
        _ => read::read(schema, wire, at, body),
    }
}

/// Makes a call and prints the response.
pub(super) fn call(client: &Client, info: &MethodInfo, given: &Given<'_>) -> Done {
    let method = spoken(info);
    let Some(schema) = &info.schema else {
        let request = given.arguments.join(" ");
        let response =
            client.start(method, &CallOptions::default(), Beside::default(), request.as_bytes()).wait();
        return ended(response, given, |_, body| Some(bytes(body)), true);
    };
    if !schema.is_walkable() {
        return Err("its types are too many to be read here".into());
    }
    if info.codec == "raw" {
        let request = given.arguments.join(" ");
        let response =
            client.start(method, &CallOptions::default(), Beside::default(), request.as_bytes()).wait();
        return ended(response, given, |_, body| Some(bytes(body)), false);
    }
    let wire = Wire::of(&info.codec);
    let wire = wire
        .ok_or_else(|| format!("{} is not spoken here: postcard, bincode and messagepack are", info.codec))?;
    let body = arguments(info, schema, wire, given.arguments)?;
    if schema.up.is_some() || schema.down.is_some() {
        return streamed(client, method, (schema, wire), &body, given.is_whole);
    }
    let loan = match (schema.takes_bulk, given.bulk) {
        (true, Some(text)) if !text.is_empty() => {
            let mut loan = client.loan(text.len())?;
            loan.copy_from_slice(text.as_bytes());
            Some(loan)
        }
        (false, Some(_)) => return Err("the method takes no bulk".into()),
        _ => None,
    };
    let response = client.start(method, &CallOptions::default(), loan.into(), &body[..]).wait();
    let shown = |is_error: bool, body: &[u8]| {
        let ty = if is_error { schema.error } else { schema.answer };
        ty.map_or(Some(Value::Null), |ty| read(schema, wire, ty, body))
    };
    ended(response, given, shown, false)
}

/// Prints how a call ended. The bytes of a raw method are printed as they are.
fn ended(
    response: Response,
    given: &Given<'_>,
    shown: impl Fn(bool, &[u8]) -> Option<Value>,
    is_raw: bool,
) -> Done {
    let unread = "the server wrote what is no value of the type that it tells";
    let metadata = response.metadata.as_deref().map(noted).unwrap_or_default();
    let body = response.body.bytes();
    match response.status {
        ResponseStatus::Failed(failure) => Err(failure.to_string().into()),
        // Of a call whose stream is made later, which these are not.
        ResponseStatus::Begun(_) => Err(unread.into()),
        ResponseStatus::Error => {
            let error = shown(true, body).ok_or(unread)?;
            refused(&error, given.is_whole.then(|| json!({ "error": error, "metadata": metadata })))
        }
        ResponseStatus::Ok => {
            if is_raw && !given.is_whole {
                io::stdout().write_all(body)?;
                return Ok(writeln!(io::stdout())?);
            }
            let answer = shown(false, body).ok_or(unread)?;
            let loan = response.lent.as_deref().map(|loan| bytes(loan));
            let printed = match (given.is_whole, loan) {
                (true, loan) => json!({ "answer": answer, "loan": loan, "metadata": metadata }),
                (false, Some(loan)) => json!({ "answer": answer, "loan": loan }),
                (false, None) => answer,
            };
            Ok(writeln!(io::stdout(), "{printed}")?)
        }
    }
}

/// Ends a call that the method answered with an error of its own, and prints it for programs.
fn refused(error: &Value, printed: Option<Value>) -> Done {
    if let Some(printed) = printed {
        writeln!(io::stdout(), "{printed}")?;
    }
    Err(format!("the method failed: {error}").into())
}

fn noted(metadata: &Metadata) -> Map<String, Value> {
    metadata.iter().map(|(key, value)| (key.to_owned(), bytes(value))).collect()
}

/// A call with streams: a line of standard input is an item, and an item that arrives is a line of standard output. With
/// `is_whole`, each line is an object that says what it is.
fn streamed(
    client: &Client,
    method: &'static Method,
    (schema, wire): (&Schema, Wire),
    body: &[u8],
    is_whole: bool,
) -> Done {
    let mut items = match schema.up {
        Some(ty) => given_items(schema, wire, ty)?,
        None => Vec::new(),
    }
    .into_iter()
    .peekable();
    let lanes = ends(schema.up.is_some(), schema.down.is_some());
    let mut up = schema.up.map(|_| lanes.sink::<Client, Raw, Vec<u8>>(client));
    let mut down = schema.down.map(|_| lanes.stream::<Client, Raw, Vec<u8>>(client));
    let options = CallOptions::default();
    let body = Encoded::<Raw, [u8]>::new(body);
    let call = start_streams::<Client, Raw, Fallible<Plain<Vec<u8>>, Vec<u8>>>(
        client, method, &options, lanes, &body,
    );
    let shown = |ty: Option<TypeRef>, bytes: &[u8]| {
        let value = ty.map_or(Some(Value::Null), |ty| read(schema, wire, ty, bytes));
        value.ok_or("the server wrote what is no value of the type that it tells")
    };
    let named = |name: &str, value: Value| if is_whole { json!({ name: value }) } else { value };
    let mut cut = None;
    while up.is_some() || down.is_some() {
        let mut is_idle = true;
        if let Some(sink) = &mut up {
            let sent = items.peek().map(|item| sink.try_send(item));
            match sent {
                Some(Ok(true)) => {
                    items.next();
                    is_idle = false;
                }
                Some(Ok(false)) => {}
                // The call's end says why.
                Some(Err(_)) => up = None,
                None => up.take().into_iter().for_each(gimmal_rpc::Sink::finish),
            }
        }
        if let Some(stream) = &mut down {
            match stream.try_next() {
                Poll::Ready(Some(Ok(item))) => {
                    writeln!(io::stdout(), "{}", named("item", shown(schema.down, &item)?))?;
                    is_idle = false;
                }
                Poll::Ready(ended) => (cut, down) = (ended.and_then(Result::err), None),
                Poll::Pending => {}
            }
        }
        if is_idle {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    match call.wait() {
        Ok(answer) => {
            writeln!(io::stdout(), "{}", named("answer", shown(schema.answer, &answer)?))?;
            whole(cut)
        }
        Err(CallError::App(error)) => {
            let error = shown(schema.error, &error)?;
            refused(&error, is_whole.then(|| json!({ "error": error })))
        }
        // As `Display` would have it.
        Err(error) => Err(format!("{error:?}").into()),
    }
}

/// Ends a call with an answer, whose items may have been cut off.
fn whole(cut: Option<ReadError>) -> Done {
    cut.map_or(Ok(()), |error| Err(format!("items are missing: {error}").into()))
}

/// The items of standard input.
fn given_items(schema: &Schema, wire: Wire, ty: TypeRef) -> Done<Vec<Vec<u8>>> {
    let lines = io::stdin().lines().collect::<Result<Vec<_>, _>>()?;
    let item = |(at, line): (usize, &String)| {
        let mut writer = Writer::new(schema, wire);
        let written = writer.argument(ty, line);
        written.map_err(|wrong| format!("item {}, {}: {wrong}", at + 1, schema.spelled(ty)))?;
        match wire {
            Wire::MessagePack => Ok(named::written(schema, [(ty, &line[..])].into_iter())?),
            _ => Ok(writer.out),
        }
    };
    lines.iter().enumerate().map(item).collect()
}
