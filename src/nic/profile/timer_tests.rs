use super::*;

fn steps(list: &[(u8, f64)]) -> Vec<Step> {
    list.iter().map(|(code, share)| Step { code: *code, share: *share }).collect()
}

fn steady() -> AckTimer {
    let list = [
        (11, 1.0),
        (12, 1.0),
        (13, 1.0),
        (14, 1.0),
        (15, 0.75),
        (16, 0.75),
        (17, 1.0),
        (18, 0.75),
        (19, 1.0),
    ];
    AckTimer::TwoPhase {
        floor: 16,
        factor: 2.0,
        zero_as: 4,
        adaptive: Adaptive { start: Nanos(12_580_000), first_of: 4, steps: steps(&list) },
    }
}

/// What a silent peer brings: times in ms of retransmissions, of timeouts, and of the end.
fn silence(timer: &AckTimer, code: u8, retry_cnt: u8, draw: u64) -> (Vec<f64>, Vec<f64>, f64) {
    let timer = Box::leak(Box::new(timer.clone()));
    let (mut run, mut wait) = AckTimerRun::start(timer, code, retry_cnt, draw);
    let (mut sends, mut timeouts, mut now) = (Vec::new(), Vec::new(), Nanos::ZERO);
    loop {
        now = now + wait;
        let at = now.0 as f64 / 1e6;
        let (expiry, next) = run.expire();
        wait = next;
        if matches!(expiry, Expiry::Adaptive | Expiry::Regular) {
            sends.push(at);
        }
        if matches!(expiry, Expiry::Regular | Expiry::Silent | Expiry::Exceeded) {
            timeouts.push(at);
        }
        if matches!(expiry, Expiry::Exceeded | Expiry::AdaptiveExceeded) {
            return (sends, timeouts, at);
        }
    }
}

/// Medians in ms, measured on a ConnectX-6 with firmware 20.43.
#[test]
fn steady_adapter_ends_when_measured() {
    for (code, retry_cnt, ms) in [
        (14, 1, 440.6),
        (14, 3, 1514.3),
        (14, 0, 2050.7),
        (14, 4, 2051.4),
        (14, 6, 3124.8),
        (10, 7, 3660.96),
        (16, 7, 3661.8),
        (15, 5, 2587.13),
        (17, 1, 976.75),
        (17, 2, 1781.81),
        (17, 7, 7151.7),
        (19, 7, 29700.8),
        (20, 7, 59766.3),
    ] {
        for draw in 0..4 {
            let (sends, timeouts, end) = silence(&steady(), code, retry_cnt, draw);
            // Clocks differ by up to 50 ppm.
            let margin = 1.5 + ms * 5e-5;
            assert!((end - ms).abs() < margin, "T {code} R {retry_cnt}: {end} ms, measured {ms}");
            let retries = usize::from(if retry_cnt == 0 { 4 } else { retry_cnt });
            assert_eq!(timeouts.len(), retries - 1, "T {code} R {retry_cnt}");
            let regular = retries.saturating_sub(2);
            let adaptive = sends.len() - regular;
            assert!(
                (3..=11).contains(&adaptive),
                "T {code} R {retry_cnt}: {adaptive} adaptive retransmissions"
            );
        }
    }
}

/// The floor off: a first timeout that sends nothing, then as many retransmissions as retries.
#[test]
fn spaced_timer_sends_each_retry() {
    let first = steps(&[(8, 1.0), (14, 0.565)]);
    let timer = AckTimer::Spaced { first, first_is_silent: true, spacing: 1.0 };
    for (code, retry_cnt, ms) in [(14, 0, 105.07), (14, 7, 574.90), (8, 3, 5.43), (8, 0, 2.24)] {
        let (sends, timeouts, end) = silence(&timer, code, retry_cnt, 0);
        assert_eq!((sends.len(), timeouts.len()), (usize::from(retry_cnt), usize::from(retry_cnt) + 2));
        assert!((end - ms).abs() < 1.2, "T {code} R {retry_cnt}: {end} ms, measured {ms}");
    }
}

/// Any attributes and draws: the timer ends, its times rise, and one more retry never ends it sooner.
#[test]
fn timer_ends_after_its_retries() {
    let spaced = AckTimer::Spaced { first: steps(&[(0, 0.8)]), first_is_silent: false, spacing: 1.5 };
    for timer in [steady(), spaced] {
        for code in 1..=31 {
            let mut before = 0.0;
            for retry_cnt in 1..=7 {
                let (sends, timeouts, end) = silence(&timer, code, retry_cnt, u64::from(code) + 7);
                assert!(sends.is_sorted() && timeouts.is_sorted() && end > before, "T {code} R {retry_cnt}");
                assert!(sends.len() >= usize::from(retry_cnt) - 1, "T {code} R {retry_cnt}");
                before = end;
            }
        }
    }
}
