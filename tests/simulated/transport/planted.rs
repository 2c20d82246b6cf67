//! Planted bugs that the seeds of the simulation rarely meet: each breaks a script of packets.

use roxie::transport::PlantedBug;

use crate::transport::{requester, selective, windows};

const SCRIPTS: [(PlantedBug, fn()); 4] = [
    (PlantedBug::EarlyPacketsAreSilent, selective::early_send_packets_fill_the_receive),
    (PlantedBug::WideGapsAreIgnored, selective::wide_gap_hides_the_end_of_a_send),
    (PlantedBug::RnrCodeZeroIsNoWait, requester::rnr_wait_lasts_the_naks_timer),
    (PlantedBug::WindowOpensToAllQps, windows::type_2_window_serves_only_its_qp),
];

#[test]
fn planted_bugs_break_these_scripts() {
    for (bug, script) in SCRIPTS {
        PlantedBug::plant(Some(bug));
        let result = std::panic::catch_unwind(script);
        PlantedBug::plant(None);
        assert!(result.is_err(), "{bug:?} breaks nothing");
        script();
    }
}
