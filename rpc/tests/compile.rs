//! What a user sees who spells a service wrongly: the complaint, and where it points.

#[test]
fn complaints_point_at_their_place() {
    trybuild::TestCases::new().compile_fail("tests/compile/*.rs");
}
