//! The course: ten lessons, and the questions at the end of each. Answers are not stored: each is a number of a run.

use roxie_report::failure::Failure;
use serde_json::Value;

use super::catalogue::Lab;
use super::document::{Report, Run};

/// A lesson of `docs/lab`.
pub(super) struct Lesson {
    pub(super) title: &'static str,
    /// File name of its page.
    pub(super) page: &'static str,
    pub(super) questions: [Question; 3],
}

/// A question.
pub(super) struct Question {
    pub(super) text: &'static str,
    /// The lab and arguments that answer it.
    pub(super) run: &'static str,
    /// Values of the run's choices; empty for the requested run.
    choose: &'static [&'static str],
    answer: Answer,
}

/// How to find the answer.
enum Answer {
    /// A fact of the run.
    Fact(&'static str),
    /// The difference of a fact to the run with these arguments.
    More(&'static str, &'static str),
    /// The choice of the run in which a fact is highest.
    Highest(&'static str),
}

const fn ask(
    text: &'static str,
    run: &'static str,
    choose: &'static [&'static str],
    answer: Answer,
) -> Question {
    Question { text, run, choose, answer }
}

/// All lessons.
pub(super) const LESSONS: [Lesson; 10] = [
    Lesson {
        title: "A frame",
        page: "01-frame.md",
        questions: [
            ask(
                "At which byte does the BTH of a RoCE v2 frame over IPv4 begin if the frame has a VLAN tag?",
                "frame --vlan 7",
                &[],
                Answer::Fact("bth_offset"),
            ),
            ask(
                "A WRITE of 1000 bytes in one RoCE v2 frame over IPv4: how many of its bits can be flipped without \
                 being detected?",
                "frame --payload 1000",
                &[],
                Answer::Fact("flips_unnoticed"),
            ),
            ask(
                "How many bytes of a RoCE v1 frame with a WRITE of 32 bytes are not payload?",
                "frame",
                &["RoCE v1"],
                Answer::Fact("overhead_bytes"),
            ),
        ],
    },
    Lesson {
        title: "The path of a work request",
        page: "02-doorbell.md",
        questions: [
            ask(
                "How many packets carry a WRITE of 10000 bytes to the peer?",
                "doorbell --operation write --bytes 10000",
                &[],
                Answer::Fact("packets_there"),
            ),
            ask(
                "How many packets answer a READ of 8192 bytes?",
                "doorbell --operation read --bytes 8192",
                &[],
                Answer::Fact("packets_back"),
            ),
            ask(
                "How many microseconds later does a SEND of 64 bytes complete if each cable is 2000 m long and not 5?",
                "doorbell --metres 2000",
                &[],
                Answer::More("doorbell", "completed_us"),
            ),
        ],
    },
    Lesson {
        title: "Go-back-N",
        page: "03-go-back-n.md",
        questions: [
            ask(
                "The fourth of ten packets is lost. How many packets does the requester send again?",
                "go-back-n --packets 10 --lose 4",
                &[],
                Answer::Fact("sent_again"),
            ),
            ask(
                "The tenth of ten packets is lost. How many does it send again?",
                "go-back-n --packets 10 --lose 10",
                &[],
                Answer::Fact("sent_again"),
            ),
            ask(
                "Of eight packets the second is lost, and the first retransmitted packet as well (`--lose 2,9`). How \
                 many timeouts does the requester have?",
                "go-back-n --packets 8 --lose 2,9",
                &[],
                Answer::Fact("timeouts"),
            ),
        ],
    },
    Lesson {
        title: "Receiver not ready",
        page: "04-rnr.md",
        questions: [
            ask(
                "Four SENDs find no receive for 3000 us, and the responder's timer has code 12. How many RNR NAKs are \
                 sent?",
                "rnr --late 3000 --timer 12",
                &[],
                Answer::Fact("rnr_naks"),
            ),
            ask(
                "Eight SENDs, 1500 us, code 8: how many packets are sent again?",
                "rnr --messages 8 --timer 8",
                &[],
                Answer::Fact("sent_again"),
            ),
            ask(
                "The same four SENDs as by default, but timer code 1 and an rnr_retry of 3: how many of them are delivered?",
                "rnr --retries 3 --timer 1",
                &[],
                Answer::Fact("delivered"),
            ),
        ],
    },
    Lesson {
        title: "READs and atomics",
        page: "05-read-and-atomic.md",
        questions: [
            ask(
                "A READ of eight packets loses the fifth response. How many of the bytes that it returns are older \
                 than the others?",
                "read --packets 8 --lose 5",
                &[],
                Answer::Fact("old_bytes"),
            ),
            ask(
                "All responses to eight FETCH_ADDs are lost, and two may be outstanding. What is the value of the \
                 counter at the end?",
                "atomic --adds 8 --depth 2 --lose all",
                &[],
                Answer::Fact("counter"),
            ),
            ask(
                "The response to the first of six FETCH_ADDs is lost, with six outstanding. How many requests does the \
                 responder receive twice?",
                "atomic --adds 6 --depth 6 --lose 1",
                &[],
                Answer::Fact("duplicates"),
            ),
        ],
    },
    Lesson {
        title: "Four protocols",
        page: "06-compare.md",
        questions: [
            ask(
                "How many bytes on the wire, in both directions, does a SEND of 64 bytes take over iWARP?",
                "compare --bytes 64",
                &["iWARP", "SEND"],
                Answer::Fact("wire_bytes"),
            ),
            ask(
                "How many packets carry a WRITE of 65536 bytes over RoCE v2 on a link with an MTU of 9000?",
                "compare --bytes 65536 --mtu 9000",
                &["RoCE v2", "WRITE"],
                Answer::Fact("packets_there"),
            ),
            ask(
                "Which of the four has the best efficiency for a message of 4096 bytes at an MTU of 1500?",
                "compare",
                &[],
                Answer::Highest("efficiency"),
            ),
        ],
    },
    Lesson {
        title: "Blocks over a fabric",
        page: "07-nvmeof.md",
        questions: [
            ask(
                "How many packets does the host itself send for a read of 64 KB over RDMA?",
                "nvmeof --kb 64",
                &["RDMA", "read"],
                Answer::Fact("packets_of_host"),
            ),
            ask(
                "How many PDUs does a write of 4 KB take over TCP if 4096 bytes may go with the command?",
                "nvmeof --kb 4 --in-capsule 4096",
                &["TCP", "write"],
                Answer::Fact("pdus"),
            ),
            ask(
                "How many bytes does a processor copy for a read of 64 KB over TCP?",
                "nvmeof --kb 64",
                &["TCP", "read"],
                Answer::Fact("copied_bytes"),
            ),
        ],
    },
    Lesson {
        title: "Headroom",
        page: "08-headroom.md",
        questions: [
            ask(
                "How many bytes of headroom does a lossless priority need at 100 Gb/s and 1000 m, for frames of 4200 bytes?",
                "pfc --metres 1000",
                &[],
                Answer::Fact("needed"),
            ),
            ask(
                "At 100 Gb/s and 1000 m, XOFF is put at 80 % of 400000 bytes. How many frames are lost at the worst moment?",
                "pfc --metres 1000",
                &["XOFF at 80 %", "1000 m"],
                Answer::Fact("dropped"),
            ),
            ask(
                "The switch of `roxie lab headroom` gets four lossless priorities instead of two. How many bytes are left to share?",
                "headroom --lossless 4",
                &[],
                Answer::Fact("shared"),
            ),
        ],
    },
    Lesson {
        title: "Shares, pauses and a deadlock",
        page: "09-ets-and-deadlock.md",
        questions: [
            ask(
                "Priority 3 has a share of 70, priority 0 of 30, and both are busy. How many Gb/s of 100 does priority \
                 3 get, without the gaps between frames?",
                "ets --share 0=30,3=70",
                &[],
                Answer::Fact("priority_3_gbps"),
            ),
            ask(
                "In the same plan, priority 3 is paused. How many Gb/s does priority 0 get?",
                "ets --share 0=30,3=70",
                &[],
                Answer::Fact("priority_0_paused_gbps"),
            ),
            ask(
                "A ring of six switches: how many links are in the cycle that the shortest routes allow?",
                "deadlock --switches 6",
                &[],
                Answer::Fact("cycle_links"),
            ),
        ],
    },
    Lesson {
        title: "Incast, a victim, and rates",
        page: "10-congestion.md",
        questions: [
            ask(
                "Twenty senders, 128 KB each, one receiver at 40 Gb/s, PFC alone: how long until the last message is \
                 complete, relative to the ideal time?",
                "incast",
                &["PFC alone"],
                Answer::Fact("slowdown"),
            ),
            ask(
                "Eight senders to the congested receiver, PFC alone: how many Gb/s does the bystander get?",
                "victim --senders 8",
                &["PFC alone", "the same"],
                Answer::Fact("victim_gbps"),
            ),
            ask(
                "`roxie lab dcqcn`: how many frames are lost with DCQCN alone, before rates settle?",
                "dcqcn",
                &["DCQCN alone"],
                Answer::Fact("dropped"),
            ),
        ],
    },
];

/// Relative tolerance of an answer: terminals and pages show rounded numbers.
const TOLERANCE: f64 = 0.01;

fn report(run: &str) -> Result<Report, Failure> {
    let words: Vec<String> = run.split(' ').map(str::to_owned).collect();
    Lab::read(&words)?.report(&words)
}

fn missing(what: &str) -> Failure {
    Failure::Run(format!("the run has no {what}"))
}

impl Question {
    /// Computes the right answer by a run.
    ///
    /// # Errors
    ///
    /// If the run fails.
    pub(super) fn answer(&self) -> Result<Value, Failure> {
        let report = report(self.run)?;
        let has = |run: &&Run| {
            self.choose.iter().all(|wanted| run.choice.iter().any(|choice| choice.value == **wanted))
        };
        let run = report.runs.iter().find(has).ok_or_else(|| missing("such choice"))?;
        let number = |run: &Run, name: &str| run.facts.number(name).ok_or_else(|| missing(name));
        Ok(match self.answer {
            Answer::Fact(name) => number(run, name)?.into(),
            Answer::More(than, name) => {
                let other = self::report(than)?;
                let before = other.runs.first().ok_or_else(|| missing("run"))?;
                super::document::round(number(run, name)? - number(before, name)?).into()
            }
            Answer::Highest(name) => {
                let all = report.runs.iter().max_by(|a, b| {
                    let of = |run: &Run| run.facts.number(name).unwrap_or(f64::MIN);
                    of(a).total_cmp(&of(b))
                });
                all.and_then(|run| run.choice.first()).ok_or_else(|| missing("choice"))?.value.clone().into()
            }
        })
    }
}

/// True if the answer `said` equals `right`, within the tolerance.
pub(super) fn agrees(said: &str, right: &Value) -> bool {
    match right.as_f64() {
        Some(right) => match read(said) {
            Some(said) => (said - right).abs() <= TOLERANCE * right.abs(),
            None => false,
        },
        None => right.as_str().is_some_and(|right| right.eq_ignore_ascii_case(said.trim())),
    }
}

/// Parses a number, with optional commas between thousands and an optional unit.
fn read(said: &str) -> Option<f64> {
    let plain: String = said.trim().chars().filter(|c| *c != ',' && *c != '_').collect();
    plain.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_may_be_rounded_and_have_units() {
        assert!(agrees("75,053 bytes", &75_053.into()) && agrees("75000", &75_053.into()));
        assert!(!agrees("74000", &75_053.into()) && !agrees("", &1.into()) && !agrees("many", &1.into()));
        assert!(agrees("0", &0.into()) && !agrees("0.001", &0.into()));
        assert!(agrees("infiniband ", &"InfiniBand".into()) && !agrees("iWARP", &"InfiniBand".into()));
    }
}
