//! Our declarations beside the ones that `rdma-sys` makes from the installed headers: every struct, every field, every
//! value.

use super::{layout::Layout, types_cm, types_verbs, values};

fn differences(ours: &[Layout], theirs: &[Layout]) -> Vec<String> {
    assert_eq!(ours.len(), theirs.len());
    let mut found = Vec::new();
    for (ours, theirs) in ours.iter().zip(theirs) {
        if (ours.bytes, ours.align) != (theirs.bytes, theirs.align) {
            found.push(format!(
                "{}: {} bytes aligned to {} here, {} aligned to {} there",
                ours.name, ours.bytes, ours.align, theirs.bytes, theirs.align
            ));
        }
        for (ours_field, theirs_field) in ours.fields.iter().zip(&theirs.fields) {
            if ours_field != theirs_field {
                found.push(format!("{}: {ours_field:?} here, {theirs_field:?} there", ours.name));
            }
        }
    }
    found
}

#[test]
fn every_struct_and_field_lies_where_the_headers_put_it() {
    let ours = [types_verbs::ours(), types_cm::ours()].concat();
    let theirs = [types_verbs::theirs(), types_cm::theirs()].concat();
    let fields: usize = ours.iter().map(|layout| layout.fields.len()).sum();
    println!("{} structs and unions, {fields} fields", ours.len());
    assert!(ours.len() > 60 && fields > 400, "{} structs, {fields} fields", ours.len());
    assert_eq!(differences(&ours, &theirs), Vec::<String>::new());
}

#[test]
fn a_field_in_the_wrong_place_is_found() {
    let ours = types_verbs::ours();
    let mut moved = ours.clone();
    moved[3].fields[1].offset += 4;
    assert_eq!(differences(&ours, &moved).len(), 1);
}

#[test]
fn every_value_is_the_headers() {
    let (choices, mut found) = values::choice_differences();
    let (flags, of_flags) = values::flag_differences();
    found.extend(of_flags);
    assert!(choices > 130 && flags > 40, "{choices} and {flags}");
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn constants_are_the_headers() {
    use crate::sys::{rai, rdma};
    assert_eq!(crate::datagram::Qkey::UDP.0, rdma::RDMA_UDP_QKEY);
    assert_eq!(
        [rai::PASSIVE, rai::NUMERICHOST, rai::NOROUTE, rai::FAMILY].map(i32::cast_unsigned),
        [rdma::RAI_PASSIVE, rdma::RAI_NUMERICHOST, rdma::RAI_NOROUTE, rdma::RAI_FAMILY]
    );
    assert_eq!(values::IBV_GID_TYPE_ROCE_V2, rdma::IBV_GID_TYPE_ROCE_V2);
}
