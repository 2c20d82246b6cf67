//! Services without acknowledgements, and congestion notifications.

use super::capture::Capture;
use super::*;

fn uc(opcode: Opcode, ahead: u32, length: usize) -> Craft {
    request(opcode, ahead).data(&vec![7; length])
}

#[test]
fn messages_of_uc_are_followed_over_losses() {
    let mut capture = Capture::new();
    capture.has(&uc(Opcode::UC_SEND_FIRST, 0, 1024));
    capture.has(&uc(Opcode::UC_SEND_MIDDLE, 1, 1024));
    // PSN 2 is lost, and with it the rest of the message.
    capture.has(&uc(Opcode::UC_SEND_LAST, 3, 10));
    capture.has(&uc(Opcode::UC_SEND_ONLY, 4, 0));
    capture.has(&uc(Opcode::UC_SEND_FIRST, 9, 256));
    capture.has(&uc(Opcode::UC_SEND_LAST, 10, 256));
    capture.is_clean();
    assert_eq!((capture.ruling("opcodes_in_order").kept, capture.ruling("lengths_fit").kept), (3, 6));
}

#[test]
fn wrong_order_and_lengths_of_uc_are_found() {
    let mut capture = Capture::new();
    capture.has(&uc(Opcode::UC_SEND_FIRST, 0, 1024));
    capture.has(&uc(Opcode::UC_SEND_ONLY, 1, 4));
    capture.breaks("opcodes_in_order", A, &[1, 2], "Send First is followed by Send Only");
    let mut capture = Capture::new();
    capture.has(&uc(Opcode::UC_SEND_FIRST, 0, 1024));
    capture.has(&uc(Opcode::UC_SEND_MIDDLE, 1, 512));
    capture.breaks("lengths_fit", A, &[2], "512 bytes; the one before has 1024");
    let mut capture = Capture::new();
    capture.has(&uc(Opcode::UC_SEND_ONLY, 0, 4100));
    capture.breaks("lengths_fit", A, &[1], "4100 bytes");
}

#[test]
fn form_of_a_notification_is_judged() {
    let notification = |becn, length| {
        request(Opcode::CNP, 0).with(|bth| (bth.becn, bth.ack_req) = (becn, false)).data(&vec![0; length])
    };
    let mut capture = Capture::new();
    capture.has(&notification(true, 16));
    capture.is_clean();
    assert_eq!(capture.ruling("notification_form").kept, 1);
    for (craft, words) in [(notification(false, 16), "no BECN"), (notification(true, 20), "20 bytes")] {
        let mut capture = Capture::new();
        capture.has(&craft);
        capture.breaks("notification_form", A, &[1], words);
    }
}
