//! Our declarations beside the installed C headers themselves, by a small C program: `rdma-sys` writes its unions by hand,
//! so agreeing with it is not enough for those.

use std::{fmt::Write as _, process::Command};

use super::{cm, layout::Layout, types_cm, types_verbs, verbs};

/// C's name of a struct; `None` for parts that have no name of their own there, which are checked through their owner.
fn c_type(name: &str) -> Option<String> {
    const NAMELESS: [&str; 16] = [
        "ibv_gid_global_t",
        "ibv_async_event_element_t",
        "imm_data_invalidated_rkey_union_t",
        "rdma_t",
        "atomic_t",
        "ud_t",
        "wr_t",
        "xrc_t",
        "qp_type_t",
        "bind_mw_t",
        "tso_t",
        "bind_mw_tso_union_t",
        "src_addr_union_t",
        "dst_addr_union_t",
        "addr_union_t",
        "param_t",
    ];
    match name {
        "ibv_gid" => Some("union ibv_gid".to_owned()),
        name if NAMELESS.contains(&name) => None,
        name => Some(format!("struct {name}")),
    }
}

/// The owner of a nameless part, and the way to a member of it in C.
fn c_path(part: &str, field: &str) -> Option<(&'static str, String)> {
    let (owner, path) = match part {
        "ibv_gid_global_t" => ("union ibv_gid", "global."),
        "ibv_async_event_element_t" => ("struct ibv_async_event", "element."),
        "rdma_t" => ("struct ibv_send_wr", "wr.rdma."),
        "atomic_t" => ("struct ibv_send_wr", "wr.atomic."),
        "ud_t" => ("struct ibv_send_wr", "wr.ud."),
        "wr_t" => ("struct ibv_send_wr", "wr."),
        "xrc_t" => ("struct ibv_send_wr", "qp_type.xrc."),
        "qp_type_t" => ("struct ibv_send_wr", "qp_type."),
        "bind_mw_t" => ("struct ibv_send_wr", "bind_mw."),
        "tso_t" => ("struct ibv_send_wr", "tso."),
        "bind_mw_tso_union_t" => ("struct ibv_send_wr", ""),
        "src_addr_union_t" | "dst_addr_union_t" => ("struct rdma_addr", ""),
        "addr_union_t" => ("struct rdma_addr", "addr."),
        "param_t" => ("struct rdma_cm_event", "param."),
        // Its two members have different names in the two structs that hold it; its owners' fields check it.
        _ => return None,
    };
    Some((owner, format!("{path}{field}")))
}

/// C's name of a field.
fn c_field(field: &str) -> &str {
    match field {
        "imm_data_invalidated_rkey_union" => "imm_data",
        "bind_mw_tso_union" => "bind_mw",
        "src_addr_union" => "src_storage",
        "dst_addr_union" => "dst_storage",
        "type_" => "type",
        "priv_" => "priv",
        field => field,
    }
}

/// Where a nameless part begins in its owner: what its members' offsets are counted from.
const fn first_member(part: &str) -> &'static str {
    match part.as_bytes() {
        b"ibv_gid_global_t" => "global",
        b"ibv_async_event_element_t" => "element",
        b"rdma_t" | b"atomic_t" | b"ud_t" | b"wr_t" => "wr",
        b"xrc_t" | b"qp_type_t" => "qp_type",
        b"bind_mw_t" | b"tso_t" | b"bind_mw_tso_union_t" => "bind_mw",
        b"src_addr_union_t" => "src_addr",
        b"dst_addr_union_t" => "dst_addr",
        b"addr_union_t" => "addr",
        _ => "param",
    }
}

/// A line for each struct and each field, in the order of `layouts`; and the lines that ours must give.
fn program(layouts: &[Layout]) -> (String, Vec<String>) {
    let mut source =
        "#include <rdma/rdma_cma.h>\n#include <infiniband/sa.h>\n#include <stddef.h>\n#include <stdio.h>\n\
                      #define SIZE(t, m) sizeof(((t *)0)->m)\nint main(void) {\n"
            .to_owned();
    let mut expected = Vec::new();
    for layout in layouts {
        let name = layout.name;
        if let Some(c) = c_type(name) {
            let _ = writeln!(source, "printf(\"{name} %zu %zu\\n\", sizeof({c}), _Alignof({c}));");
            expected.push(format!("{name} {} {}", layout.bytes, layout.align));
        }
        for field in &layout.fields {
            let c_name = c_field(field.name);
            let (owner, path, base) = match c_type(name) {
                Some(c) => (c, c_name.to_owned(), "0".to_owned()),
                None => {
                    let Some((owner, path)) = c_path(name, c_name) else { continue };
                    (owner.to_owned(), path, format!("offsetof({owner}, {})", first_member(name)))
                }
            };
            let _ = writeln!(
                source,
                "printf(\"{name}.{} %zu %zu\\n\", offsetof({owner}, {path}) - {base}, SIZE({owner}, {path}));",
                field.name
            );
            // C sees the member; for a union without a name we named the whole: its size is the largest member's.
            expected.push(format!("{name}.{} {} {}", field.name, field.offset, field.bytes));
        }
    }
    source.push_str("return 0; }\n");
    (source, expected)
}

/// C's spelling of a type of ours.
fn c_spelling(rust: &str) -> String {
    let rust = rust.replace(' ', "");
    if let Some(inner) = rust.strip_prefix("*mut") {
        return format!("{} *", c_spelling(inner));
    }
    if let Some(inner) = rust.strip_prefix("*const") {
        return format!("const {} *", c_spelling(inner));
    }
    match rust.as_str() {
        "" | "c_void" => "void".to_owned(),
        "c_int" => "int".to_owned(),
        "c_uint" => "unsigned int".to_owned(),
        "c_char" => "char".to_owned(),
        "usize" => "size_t".to_owned(),
        "isize" => "ssize_t".to_owned(),
        "u8" | "u16" | "u32" | "u64" => format!("uint{}_t", &rust[1..]),
        "ibv_gid" => "union ibv_gid".to_owned(),
        "ibv_fork_status" => "enum ibv_fork_status".to_owned(),
        big_endian if big_endian.starts_with("__be") => rust,
        other => match other.strip_suffix("::Type") {
            Some(name) => format!("enum {name}"),
            None => format!("struct {other}"),
        },
    }
}

/// Compiles `source` and returns what it prints.
fn run(source: String) -> std::io::Result<String> {
    let folder = tempfile::tempdir()?;
    let (file, binary) = (folder.path().join("check.c"), folder.path().join("check"));
    std::fs::write(&file, source)?;
    let compiled = Command::new("cc").arg("-o").arg(&binary).arg(&file).output()?;
    if !compiled.status.success() {
        return Err(std::io::Error::other(String::from_utf8_lossy(&compiled.stderr).into_owned()));
    }
    let output = Command::new(&binary).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_function_has_the_type_of_the_headers() {
    // `ibv_query_port` takes a shorter struct there, which is a prefix of the one that we pass.
    let ours = [cm::signatures(), verbs::signatures(), verbs::plain::signatures()].concat();
    let ours: Vec<_> = ours.into_iter().filter(|(name, ..)| *name != "ibv_query_port").collect();
    let mut source =
        "#include <rdma/rdma_cma.h>\n#include <rdma/rdma_verbs.h>\n#include <stdio.h>\n#undef ibv_reg_mr\n\
                      #undef ibv_reg_mr_iova\nint main(void) {\n"
            .to_owned();
    for (name, arguments, result) in &ours {
        let mut arguments: Vec<_> = arguments.iter().map(|argument| c_spelling(argument)).collect();
        if arguments.is_empty() {
            arguments.push("void".to_owned());
        }
        let _ = writeln!(
            source,
            "if (!__builtin_types_compatible_p(__typeof__({name}), {} ({}))) puts(\"{name}\");",
            c_spelling(result),
            arguments.join(", ")
        );
    }
    source.push_str("return 0; }\n");
    println!("{} functions", ours.len());
    assert!(ours.len() > 70, "{}", ours.len());
    assert_eq!(run(source).unwrap(), "", "these differ");
}

#[test]
fn the_c_headers_say_the_same() {
    let layouts = [types_verbs::ours(), types_cm::ours()].concat();
    let (source, expected) = program(&layouts);
    let said = run(source).unwrap();
    let said: Vec<&str> = said.lines().collect();
    assert_eq!(said.len(), expected.len());
    let different: Vec<_> = said.iter().zip(&expected).filter(|(theirs, ours)| theirs != ours).collect();
    assert!(different.is_empty(), "(headers, ours): {different:#?}");
}
