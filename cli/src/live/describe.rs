//! A server's services as Rust traits.

use std::{collections::BTreeMap, fmt::Write as _};

use gimmal_rpc::{
    reflect::MethodInfo,
    shape::{Contents, Field, Schema, Type},
};

/// Traits and types that a client of these methods needs.
pub(super) fn described(methods: &[MethodInfo]) -> String {
    let mut services: BTreeMap<&str, Vec<&MethodInfo>> = BTreeMap::new();
    for method in methods {
        services.entry(&method.service).or_default().push(method);
    }
    let mut types = BTreeMap::new();
    let mut out = String::new();
    for (service, methods) in services {
        out.push_str(&service_text(service, &methods));
        for schema in methods.iter().filter_map(|method| method.schema.as_ref()) {
            for ty in &schema.types {
                if let Some((name, text)) = type_text(schema, ty) {
                    types.insert(name, text);
                }
            }
        }
    }
    for text in types.values() {
        out.push_str(text);
    }
    out
}

fn service_text(service: &str, methods: &[&MethodInfo]) -> String {
    let ident = service.rsplit('.').next().unwrap_or(service);
    let mut options = Vec::new();
    let codecs: Vec<&str> =
        methods.iter().filter(|method| method.schema.is_some()).map(|method| &method.codec[..]).collect();
    let shared = codecs.first().copied().filter(|first| codecs.iter().all(|codec| codec == first));
    let codec_of = |name: &str| match name {
        "messagepack" => "MessagePack".to_owned(),
        name => {
            let mut letters = name.chars();
            let first = letters.next().map(|first| first.to_uppercase().to_string()).unwrap_or_default();
            format!("{first}{}", letters.as_str())
        }
    };
    if let Some(codec) = shared.filter(|codec| !matches!(*codec, "postcard" | "")) {
        options.push(format!("codec = {}", codec_of(codec)));
    }
    if ident != service {
        options.push(format!("name = {service:?}"));
    }
    let options = if options.is_empty() { String::new() } else { format!("({})", options.join(", ")) };
    let mut out = format!("#[gimmal::service{options}]\ntrait {ident} {{\n");
    for method in methods {
        if method.is_idempotent {
            out.push_str("    #[idempotent]\n");
        }
        if method.kind == "one-way" {
            out.push_str("    #[oneway]\n");
        }
        let name = &method.name;
        let Some(schema) = &method.schema else {
            let parameters = "&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>";
            // Writing to a string does not fail.
            let _ = writeln!(out, "    #[raw]\n    fn {name}({parameters}); // no shape");
            continue;
        };
        if shared.is_none() && !matches!(&method.codec[..], "postcard" | "") {
            let _ = writeln!(out, "    #[codec({})]", codec_of(&method.codec));
        }
        let how = if method.kind == "raw" { "#[inline]\n    fn" } else { "async fn" };
        let _ = writeln!(out, "    {how} {name}({}){};", parameters(schema), result(schema));
    }
    out.push_str("}\n\n");
    out
}

/// The parameters of a method, `&self` included.
pub(super) fn parameters(schema: &Schema) -> String {
    let mut all = vec!["&self".to_owned(), "cx: &Cx".to_owned()];
    all.extend(schema.arguments.iter().map(|field| field_text(schema, field)));
    if let Some(item) = schema.up {
        all.push(format!("up: Stream<{}>", schema.spelled(item)));
    }
    if let Some(item) = schema.down {
        all.push(format!("down: Sink<{}>", schema.spelled(item)));
    }
    if schema.takes_bulk {
        all.push("bulk: Bulk".to_owned());
    }
    all.join(", ")
}

fn result(schema: &Schema) -> String {
    let Some(answer) = schema.answer else { return String::new() };
    let mut value = schema.spelled(answer);
    if schema.gives_bulk {
        value = format!("WithLoan<{value}>");
    }
    match schema.error {
        Some(error) => format!(" -> Result<{value}, {}>", schema.spelled(error)),
        None if value == "()" => String::new(),
        None => format!(" -> {value}"),
    }
}

fn field_text(schema: &Schema, field: &Field) -> String {
    format!("{}: {}", field.name, schema.spelled(field.ty))
}

/// A struct or an enum, by its name. The standard library's own are known.
fn type_text(schema: &Schema, ty: &Type) -> Option<(String, String)> {
    const KNOWN: [&str; 8] =
        ["Duration", "SystemTime", "Range", "RangeInclusive", "Result", "IpAddr", "SocketAddr", "Infallible"];
    let derives = "#[derive(Serialize, Deserialize, gimmal::Shape)]\n";
    let (name, text) = match ty {
        Type::Struct { name, fields, .. } => {
            let fields: String =
                fields.iter().map(|field| format!("    {},\n", field_text(schema, field))).collect();
            (name, format!("{derives}struct {name} {{\n{fields}}}\n\n"))
        }
        Type::Enum { name, variants, .. } => {
            let variants: String = variants
                .iter()
                .map(|variant| {
                    let contents = match &variant.contents {
                        Contents::Unit => String::new(),
                        Contents::Newtype(inner) => format!("({})", schema.spelled(*inner)),
                        Contents::Tuple(types) => {
                            let types: Vec<String> = types.iter().map(|ty| schema.spelled(*ty)).collect();
                            format!("({})", types.join(", "))
                        }
                        Contents::Struct(fields) => {
                            let fields: Vec<String> =
                                fields.iter().map(|field| field_text(schema, field)).collect();
                            format!(" {{ {} }}", fields.join(", "))
                        }
                    };
                    format!("    {}{contents},\n", variant.name)
                })
                .collect();
            (name, format!("{derives}enum {name} {{\n{variants}}}\n\n"))
        }
        _ => return None,
    };
    (!KNOWN.contains(&&name[..])).then(|| (name.clone(), text))
}
