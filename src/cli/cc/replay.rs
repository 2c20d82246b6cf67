//! Parses the events of `roxie cc replay`, and formats the state after each.

use roxie::congestion::{Control, Dcqcn};
use roxie::time::Nanos;
use roxie_report::formats;
use serde::Serialize;
use serde_json::{Deserializer, Map, Number, Value};

/// One event of the list.
#[derive(Debug)]
pub(super) struct Event {
    /// The time as written in the list; printed back unchanged.
    us: Number,
    at: Nanos,
    what: What,
}

#[derive(Debug)]
enum What {
    Notified,
    Sent(u64),
    Look,
}

/// The state after an event. The fields are printed in this order.
#[derive(Serialize)]
struct After<'a> {
    version: u32,
    us: &'a Number,
    rc_gbps: f64,
    rt_gbps: f64,
    alpha: f64,
    byte_stage: u64,
    timer_stage: u64,
}

/// Why a list was rejected. Events count from 1.
#[derive(Debug, thiserror::Error)]
pub(super) enum Wrong {
    #[error("there are no events: write a JSON array such as [{{\"us\": 0, \"cnp\": true}}, {{\"us\": 55}}]")]
    Empty,
    #[error("no JSON behind {after} events: {error}")]
    Json { after: usize, error: serde_json::Error },
    #[error("event {number}: {why}")]
    Event { number: usize, why: String },
}

/// Parses a JSON array of events, or one event object after the other.
pub(super) fn read(text: &str) -> Result<Vec<Event>, Wrong> {
    let (mut values, mut list) = (Vec::new(), false);
    for value in Deserializer::from_str(text).into_iter() {
        match value.map_err(|error| Wrong::Json { after: values.len(), error })? {
            Value::Array(all) if values.is_empty() && !list => (values, list) = (all, true),
            other => values.push(other),
        }
    }
    if values.is_empty() && !list {
        return Err(Wrong::Empty);
    }
    let mut last = None;
    let mut events = Vec::with_capacity(values.len());
    for (index, value) in values.into_iter().enumerate() {
        let wrong = |why| Wrong::Event { number: index + 1, why };
        let event = event(value).map_err(wrong)?;
        if let Some((at, us)) = &last
            && event.at < *at
        {
            return Err(wrong(format!("time goes back, from {us} us to {}", event.us)));
        }
        last = Some((event.at, event.us.clone()));
        events.push(event);
    }
    Ok(events)
}

fn event(value: Value) -> Result<Event, String> {
    let Value::Object(mut fields) = value else {
        return Err(format!("an object is wanted, such as {{\"us\": 0, \"cnp\": true}}, and not {value}"));
    };
    let (us, at) = time(fields.remove("us"))?;
    let what = match (cnp(&mut fields)?, bytes(&mut fields)?) {
        (true, Some(_)) => return Err("it has both cnp and bytes: write two events of the same us".into()),
        (true, None) => What::Notified,
        (false, Some(bytes)) => What::Sent(bytes),
        (false, None) => What::Look,
    };
    match fields.keys().next() {
        None => Ok(Event { us, at, what }),
        Some(key) => Err(format!("`{key}` is no key: there are us, cnp and bytes")),
    }
}

fn time(us: Option<Value>) -> Result<(Number, Nanos), String> {
    /// 1e12 us (11.6 days): nanoseconds stay exact as `f64`.
    const MOST_US: f64 = 1e12;
    match us {
        None => Err("us is missing: when does it happen?".into()),
        Some(Value::Number(us)) => match us.as_f64() {
            Some(t) if (0.0..=MOST_US).contains(&t) => Ok((us, Nanos((t * 1e3).round() as u64))),
            _ => Err(format!("us is {us}: a time is a number of microseconds from 0 to 1e12")),
        },
        Some(other) => Err(format!("us is {other}: a time is a number of microseconds from 0 to 1e12")),
    }
}

fn cnp(fields: &mut Map<String, Value>) -> Result<bool, String> {
    match fields.remove("cnp") {
        None => Ok(false),
        Some(Value::Bool(cnp)) => Ok(cnp),
        Some(other) => Err(format!("cnp is {other}: it is true or false")),
    }
}

fn bytes(fields: &mut Map<String, Value>) -> Result<Option<u64>, String> {
    let Some(bytes) = fields.remove("bytes") else { return Ok(None) };
    // Accept 150000.0 and 1.5e5 as whole numbers.
    let whole = bytes.as_f64().filter(|b| b.fract() == 0.0 && (0.0..=9_007_199_254_740_992.0).contains(b));
    match bytes.as_u64().or(whole.map(|b| b as u64)) {
        Some(bytes) => Ok(Some(bytes)),
        None => Err(format!("bytes is {bytes}: it is a whole number, 0 or more")),
    }
}

impl Event {
    /// Runs the event, and returns the state after it as a line of JSON.
    pub(super) fn run(&self, control: &mut Dcqcn) -> String {
        match self.what {
            What::Notified => {
                control.notified(self.at);
            }
            What::Sent(bytes) => control.sent(self.at, bytes),
            What::Look => {}
        }
        let after = After {
            version: formats::CC,
            us: &self.us,
            rc_gbps: control.rate(self.at).0 / 1e9,
            rt_gbps: control.target().0 / 1e9,
            alpha: control.alpha(),
            byte_stage: control.byte_stage(),
            timer_stage: control.timer_stage(),
        };
        serde_json::to_string(&after).unwrap_or_default()
    }
}
