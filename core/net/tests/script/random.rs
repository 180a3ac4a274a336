//! A connection under whatever a peer can think of; see `play.rs`.

use std::{fs, path::Path};

use proptest::prelude::*;

use crate::play::play;

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_of_segments_keeps_the_rules(
        settings in any::<u8>(),
        records in proptest::collection::vec(any::<[u8; 8]>(), 0..80),
    ) {
        let mut input = vec![settings];
        input.extend(records.as_flattened());
        play(&input);
    }
}

/// What fuzzing has found, and what it starts from.
#[test]
fn the_corpus_keeps_the_rules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/tcp");
    let mut played = 0;
    for entry in fs::read_dir(folder).unwrap().flatten() {
        play(&fs::read(entry.path()).unwrap());
        played += 1;
    }
    assert!(played >= 10, "only {played} inputs");
}
