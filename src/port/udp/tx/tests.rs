//! Trains of datagrams, as the kernel will cut them.

use std::fs::File;
use std::ops::Range;

use super::*;
use crate::trains::{TRAIN_LIMIT, Train};
use roxie_base::random::splitmix;

const PORT: u16 = 4791;

fn sender() -> Sender {
    let socket = SendSocket { socket: File::open("/dev/null").unwrap().into(), port: PORT };
    Sender::new(vec![socket], Vec::new(), SendLimits { segments: 64, port: PORT, scope: 0 })
}

/// Returns the datagram lengths of each train, in the order of sending.
fn trains(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut sender = sender();
    for length in lengths {
        let mut headers = [0; V4_HEADERS];
        let udp = (length + 8) as u16;
        headers[12..15].copy_from_slice(&[8, 0, 0x45]);
        headers[16..18].copy_from_slice(&(udp + 20).to_be_bytes());
        headers[23] = 17;
        headers[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        headers[34..36].copy_from_slice(&PORT.to_be_bytes());
        headers[36..38].copy_from_slice(&PORT.to_be_bytes());
        headers[38..40].copy_from_slice(&udp.to_be_bytes());
        let id = sender.alloc(V4_HEADERS + length).unwrap();
        sender.frame(&id).write(0, &headers);
        sender.commit(&id);
    }
    sender.arrange();
    let trains = &sender.trains;
    let of = |train: &Train<Flow>| {
        let lengths: Vec<usize> =
            trains.order(train).map(|i| trains.datagram(i).iter().map(Range::len).sum()).collect();
        assert_eq!((lengths.len(), lengths.iter().sum()), (train.count, train.bytes));
        assert_eq!(lengths[0], train.segment);
        lengths
    };
    trains.all().iter().map(of).collect()
}

#[test]
fn shorter_datagram_ends_its_train() {
    assert_eq!(trains(&[1048, 1044, 1048]), [vec![1048, 1044], vec![1048]]);
    assert_eq!(trains(&[1048, 1048, 1047, 1047]), [vec![1048, 1048, 1047], vec![1047]]);
    assert_eq!(trains(&[1044, 1048, 1048]), [vec![1044], vec![1048, 1048]]);
}

/// The kernel cuts a train at a fixed length: all datagrams but the last must have that length, and the last must not
/// be longer.
#[test]
fn trains_are_cut_as_the_kernel_cuts() {
    for seed in 0..500 {
        let mut state = seed;
        let mut draw = |below: u64| (splitmix(&mut state) % below) as usize;
        let common = 64 + 4 * draw(300);
        let lengths: Vec<usize> = (0..1 + draw(40))
            .map(|_| match draw(8) {
                0 => common - 4,
                1 => common + 4,
                2 => common - 1,
                3 => 1 + draw(1400),
                _ => common,
            })
            .collect();
        let trains = trains(&lengths);
        for train in &trains {
            let (last, others) = train.split_last().unwrap();
            let cut = others.iter().all(|length| *length == train[0]) && *last <= train[0];
            assert!(cut, "seed {seed}: {train:?} of {lengths:?}");
        }
        assert_eq!(trains.concat(), lengths, "seed {seed}: in order");
        // No train is shorter than necessary: its next datagram must not be the first of another train.
        for (before, after) in trains.iter().zip(&trains[1..]) {
            let open = before.len() < 64 && before.iter().all(|length| *length == before[0]);
            let full = before.iter().sum::<usize>() + after[0] > TRAIN_LIMIT;
            assert!(!open || full || after[0] > before[0], "seed {seed}: {before:?}, {after:?}");
        }
    }
}
