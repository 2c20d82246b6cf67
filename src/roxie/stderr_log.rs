//! Events of the library on standard error, for programs without a `tracing` subscriber of their own.
//!
//! The library reports what a user should know as `tracing` events: a fallback to UDP sockets at [`Level::WARN`], for
//! example. They are silent unless the program subscribes, with `tracing-subscriber` or with [`install`]. Events may be
//! reported by the thread that runs the device, under its lock: a subscriber must not use the device.

use std::fmt::{Debug, Write as _};
use std::io::{self, Write as _};

use roxie_base::text::Plain;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Passes warnings and errors on, as lines that begin with `roxie:`. Spans are ignored.
struct Lines<P>(P);

/// Subscribes for this process. Has no effect if the program has a subscriber already.
pub fn install() {
    let _ = tracing::subscriber::set_global_default(Lines(|line: &str| {
        // A closed standard error is no reason to fail.
        let _ = writeln!(io::stderr(), "{}", Plain(line));
    }));
}

impl<P: Fn(&str) + 'static> Subscriber for Lines<P> {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= Level::WARN && metadata.target().starts_with("roxie")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine(String::from("roxie:"));
        event.record(&mut line);
        (self.0)(&line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The message, then other fields as `name=value`.
struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let _ = match field.name() {
            "message" => write!(self.0, " {value:?}"),
            name => write!(self.0, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn warnings_and_errors_of_the_library_are_printed() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&lines);
        let subscriber = Lines(move |line: &str| collected.lock().unwrap().push(line.to_owned()));
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("{} is down", "eth7");
            tracing::error!(errno = 5, "lost");
            tracing::info!("not for users");
            tracing::warn!(target: "other", "not ours");
        });
        assert_eq!(*lines.lock().unwrap(), ["roxie: eth7 is down", "roxie: lost errno=5"]);
    }
}
