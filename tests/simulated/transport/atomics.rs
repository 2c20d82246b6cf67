//! The responder's side of atomics (IBTA 9.4.5): effect, result, and the response to a duplicate.

use roxie::wire::{AtomicEth, Ext, Opcode};

use crate::transport::Stage;

//= test: IBTA 9.4.5: fetch-and-add-adds
//= test: IBTA 9.7.5.1: atomic-response-has-what-was-there, duplicate-atomic-is-answered-from-memory
//= test: IBTA 9.7.5.1: forgotten-atomic-is-dropped, as-many-results-are-kept-as-agreed
#[test]
fn duplicate_atomic_returns_its_saved_result() {
    let mut stage = Stage::new();
    let add = |stage: &Stage| {
        let eth = AtomicEth { va: stage.memory.address, rkey: stage.memory.key, swap_or_add: 5, compare: 0 };
        Ext::Atomic(eth)
    };
    for psn in 0..5 {
        let ext = add(&stage);
        let answers = stage.request(Opcode::RC_FETCH_ADD, psn, ext, &[]);
        assert_eq!((answers.len(), answers[0].original), (1, Some(u64::from(psn) * 5)));
    }
    let ext = add(&stage);
    for psn in 1..5 {
        let again = stage.request(Opcode::RC_FETCH_ADD, psn, ext, &[]);
        assert_eq!((again.len(), again[0].original, again[0].psn), (1, Some(u64::from(psn) * 5), psn));
    }
    assert_eq!(
        stage.request(Opcode::RC_FETCH_ADD, 0, ext, &[]),
        [],
        "four results are saved, the oldest is evicted"
    );
    assert_eq!(stage.memory.bytes(0, 8), 25u64.to_ne_bytes(), "executed five times");
    assert_eq!(stage.counter("duplicate_dropped"), 1);
}

//= test: IBTA 9.4.5: compare-and-swap-swaps-what-compares
//= test: IBTA 9.7.5.1: atomic-response-has-what-was-there
#[test]
fn compare_and_swap_stores_only_on_a_match() {
    let mut stage = Stage::new();
    for (psn, compare, found) in [(0, 1, 0u64), (1, 0, 0), (2, 0, 7)] {
        let eth = AtomicEth { va: stage.memory.address, rkey: stage.memory.key, swap_or_add: 7, compare };
        let answers = stage.request(Opcode::RC_COMPARE_SWAP, psn, Ext::Atomic(eth), &[]);
        assert_eq!(answers[0].original, Some(found), "PSN {psn}");
    }
}
