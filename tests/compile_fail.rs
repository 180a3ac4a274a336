//! A frame can't be sent twice, freed twice, or used after it was sent, and there is none without a cache:
//! such programs do not compile.

#[test]
fn a_frame_has_one_owner() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("compile_fail/*.rs");
}
