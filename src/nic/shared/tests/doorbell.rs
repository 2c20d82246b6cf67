//! Doorbells.

use crate::shared::Doorbells;
use crate::verbs::QpIndex;

#[test]
fn each_qp_that_rang_is_taken_once() {
    let bells = Doorbells::new(10_000).unwrap();
    for qp in [0, 63, 64, 4_095, 4_096, 9_999, 9_999] {
        bells.ring(QpIndex(qp));
    }
    let mut taken = Vec::new();
    bells.take(|qp| taken.push(qp.0));
    assert_eq!(taken, [0, 63, 64, 4_095, 4_096, 9_999]);
    assert!(!bells.any());
}

/// Covers QPs beyond the first word of the summary.
#[test]
fn single_bell_is_heard_at_any_index() {
    let bells = Doorbells::new(10_000).unwrap();
    for qp in [0, 63, 64, 4_095, 4_096, 8_191, 8_192, 9_999] {
        assert!(!bells.any());
        bells.ring(QpIndex(qp));
        assert!(bells.any(), "QP {qp}");
        bells.take(|rung| assert_eq!(rung.0, qp));
    }
}

#[test]
fn bell_outside_the_page_is_ignored() {
    let bells = Doorbells::new(10).unwrap();
    bells.ring(QpIndex(64));
    assert!(!bells.any());
}

#[test]
fn only_a_sleeping_worker_is_woken() {
    let bells = Doorbells::new(10).unwrap();
    bells.ring(QpIndex(1));
    assert!(bells.wake_fd().read().is_err(), "nothing was written");
    // The worker takes all bells before it sleeps.
    bells.take(|_| ());
    bells.sleep_begins();
    bells.ring(QpIndex(1));
    bells.ring(QpIndex(2));
    bells.sleep_ends(true);
    assert!(bells.wake_fd().read().is_err());
}
