//! How fast raw frames are: the floor under everything above.

use super::*;

/// Frames received in a second, and sent ones lost in hundredths, from `left` to `right`.
fn rate(wire: &Wire, mode: Mode, len: usize, threads: bool) -> (f64, f64) {
    const FOR: Duration = Duration::from_secs(1);
    let mut left = wire.left(|c| c.mode = mode).unwrap();
    let mut right = wire.right(|c| c.mode = mode).unwrap();
    let bytes = frame(true, false, false, len, 1);
    let start = Instant::now();
    let mut send = move || {
        let n = (0..BURST).take_while(|_| put(&mut left, &bytes)).count();
        flush(&mut left);
        n as u64
    };
    let mut receive = move || {
        let n = right.rx_burst(Nanos::ZERO);
        right.rx_release();
        n as u64
    };
    let (mut sent, mut got) = (0, 0);
    if threads {
        let sender = std::thread::spawn(move || {
            while start.elapsed() < FOR {
                sent += send();
            }
            sent
        });
        while start.elapsed() < FOR || !sender.is_finished() {
            got += receive();
        }
        sent = sender.join().unwrap();
    } else {
        while start.elapsed() < FOR {
            sent += send();
            loop {
                let n = receive();
                got += n;
                if n == 0 {
                    break;
                }
            }
        }
    }
    let rate = got as f64 / start.elapsed().as_secs_f64();
    (rate, 100.0 * (1.0 - got as f64 / sent as f64))
}

/// `cargo test --release --test xdp -- --ignored --nocapture the_rate_of_raw_frames`
#[test]
#[ignore = "a measurement: 12 s, alone on the machine"]
fn the_rate_of_raw_frames() {
    if skip("the_rate_of_raw_frames") {
        return;
    }
    let wire = Wire::new("rate", 4200, 1);
    for mode in [Mode::Native, Mode::Generic] {
        for len in [70, 1100, 4170] {
            for threads in [false, true] {
                let (rate, lost) = rate(&wire, mode, len, threads);
                let who = if threads { "two threads" } else { "one thread" };
                println!(
                    "{mode:?} {len:>4} B {who:<11} {:>7.3} Mframes/s {:>6.2} Gb/s {lost:>5.1} % lost",
                    rate / 1e6,
                    rate * len as f64 * 8.0 / 1e9
                );
                assert!(rate > 1e4, "{rate} frames/s");
            }
        }
    }
}
