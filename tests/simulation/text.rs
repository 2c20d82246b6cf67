//! Scripts as text, one line for each fact. What is as usual is not said.
//!
//! ```text
//! # Words for people.
//! seed 7
//! hosts 3 link=1500 window=8
//! q1 rc h1 h2 psn=16777214,5 depth=4
//! q2 group h3 h1 h2
//! weather h2 lose 100            of ten thousand frames to h2
//! lose q1> WRITE_LAST +2         that frame, when it goes for the first time
//! delay q1< ACKNOWLEDGE +2 3ms
//! at 10us q1> write 600 fence    from end a; < is back to it
//! at 20us reset q1.b
//! expect 1 rc Write              so often in the end
//! ```

use std::fmt;

use roxie::time::Nanos;
use roxie::verbs::{Mtu, WrOpcode};
use roxie::wire::Opcode;

use crate::script::{
    Action, Channel, FrameName, Grant, Hosts, Op, Part, Place, Rule, Script, Service, Timed, Trouble, Way,
};

const SERVICES: [(&str, Service); 4] =
    [("rc", Service::Rc), ("uc", Service::Uc), ("ud", Service::Ud), ("group", Service::Group)];

const OPCODES: [(&str, WrOpcode); 10] = [
    ("write", WrOpcode::Write),
    ("write_imm", WrOpcode::WriteImm),
    ("send", WrOpcode::Send),
    ("send_imm", WrOpcode::SendImm),
    ("send_invalidate", WrOpcode::SendInvalidate),
    ("read", WrOpcode::Read),
    ("compare_swap", WrOpcode::CompareSwap),
    ("fetch_add", WrOpcode::FetchAdd),
    ("flush", WrOpcode::Flush),
    ("atomic_write", WrOpcode::AtomicWrite),
];

const PARTS: [(&str, Part); 4] =
    [("source", Part::Source), ("landing", Part::Landing), ("target", Part::Target), ("inbox", Part::Inbox)];

const GRANTS: [(&str, Grant); 3] =
    [("window1", Grant::WindowOne), ("window2", Grant::WindowTwo), ("fast_region", Grant::FastRegion)];

fn word<T: PartialEq + Copy>(table: &[(&'static str, T)], value: T) -> &'static str {
    table.iter().find(|(_, v)| *v == value).expect("every value has its word").0
}

fn meaning<T: Copy>(table: &[(&'static str, T)], word: &str) -> Result<T, String> {
    let found = table.iter().find(|(w, _)| *w == word).map(|(_, v)| *v);
    let words = || table.iter().map(|(w, _)| *w).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| format!("`{word}` is none of {}", words()))
}

/// A time without loss.
struct Time(Nanos);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.0 {
            n if n % 1_000_000 == 0 && n > 0 => write!(f, "{}ms", n / 1_000_000),
            n if n % 1_000 == 0 => write!(f, "{}us", n / 1_000),
            n => write!(f, "{n}ns"),
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}{}", self.channel + 1, if self.back { '<' } else { '>' })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "q{}.{}", self.channel + 1, char::from(b'a' + self.end as u8))
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Hosts::default();
        write!(f, "hosts {}", self.count)?;
        if self.link_mtu != usual.link_mtu {
            write!(f, " link={}", self.link_mtu)?;
        }
        if self.ipv6 {
            write!(f, " ipv6")?;
        }
        if let Some(split) = self.split {
            write!(f, " split={split}")?;
        }
        if self.window != usual.window {
            write!(f, " window={}", self.window)?;
        }
        if self.ack_coalesce != usual.ack_coalesce {
            write!(f, " coalesce={}", self.ack_coalesce)?;
        }
        if self.slots != usual.slots {
            write!(f, " slots={}", self.slots)?;
        }
        Ok(())
    }
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usual = Channel::default();
        write!(f, "{}", word(&SERVICES, self.service))?;
        for host in &self.ends {
            write!(f, " h{}", host + 1)?;
        }
        if self.psns != usual.psns {
            write!(f, " psn={},{}", self.psns[0], self.psns[1])?;
        }
        let numbers = [
            ("mtu", self.mtu.bytes() as u64, usual.mtu.bytes() as u64),
            ("rd", self.rd_atomic.into(), usual.rd_atomic.into()),
            ("depth", self.depth as u64, usual.depth as u64),
            ("ahead", self.ahead as u64, usual.ahead as u64),
            ("dawdles", self.dawdles, usual.dawdles),
            ("timeout", self.timeout.into(), usual.timeout.into()),
            ("retries", self.retries.into(), usual.retries.into()),
            ("rnr_retries", self.rnr_retries.into(), usual.rnr_retries.into()),
            ("rnr_timer", self.rnr_timer.into(), usual.rnr_timer.into()),
            ("cq", self.cq.into(), usual.cq.into()),
        ];
        for (name, value, usual) in numbers {
            if value != usual {
                write!(f, " {name}={value}")?;
            }
        }
        if self.slow > Nanos::ZERO {
            write!(f, " slow={}", Time(self.slow))?;
        }
        if self.sig_all { write!(f, " sig_all") } else { Ok(()) }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", word(&OPCODES, self.opcode), self.length)?;
        if self.pieces != 1 {
            write!(f, " pieces={}", self.pieces)?;
        }
        if self.imm != 0 {
            write!(f, " imm={}", self.imm)?;
        }
        let flags = [
            (self.inline, "inline"),
            (self.unsignaled, "unsignaled"),
            (self.fence, "fence"),
            (self.solicited, "solicited"),
            (self.odd, "odd"),
            (self.granted, "granted"),
        ];
        flags.iter().filter(|(set, _)| *set).try_for_each(|(_, name)| write!(f, " {name}"))
    }
}

impl fmt::Display for FrameName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} h{} {} {:+}", self.way, self.to + 1, self.opcode, self.psn)?;
        if self.earlier > 0 {
            write!(f, " earlier={}", self.earlier)?;
        }
        if self.life > 0 { write!(f, " life={}", self.life) } else { Ok(()) }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Lose => write!(f, "lose"),
            Trouble::Double => write!(f, "double"),
            Trouble::Delay(time) => write!(f, "delay={}", Time(*time)),
            Trouble::Harm => write!(f, "harm"),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Rate { to, trouble, of_10_000 } => {
                write!(f, "weather h{} {trouble} {of_10_000}", to + 1)
            }
            Rule::Strike { frame, trouble } => write!(f, "{trouble} {frame}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Post(way, op) => write!(f, "{way} {op}"),
            Action::Restart(host) => write!(f, "restart h{}", host + 1),
            Action::LinkMtu(host, mtu) => write!(f, "link_mtu h{} {mtu}", host + 1),
            Action::Move(host, late) => write!(f, "move h{} {}", host + 1, Time(*late)),
            Action::Readdress(host) => write!(f, "readdress h{}", host + 1),
            Action::PortDown(host) => write!(f, "down h{}", host + 1),
            Action::PortUp(host) => write!(f, "up h{}", host + 1),
            Action::Jump(time) => write!(f, "jump {}", Time(*time)),
            Action::Reset(place) => write!(f, "reset {place}"),
            Action::Destroy(place) => write!(f, "destroy {place}"),
            Action::Error(place) => write!(f, "error {place}"),
            Action::Drain(place) => write!(f, "drain {place}"),
            Action::Resume(place) => write!(f, "resume {place}"),
            Action::Sleep(place, time) => write!(f, "sleep {place} {}", Time(*time)),
            Action::Deregister(way, part) => write!(f, "deregister {way} {}", word(&PARTS, *part)),
            Action::DestroyHandle(channel) => write!(f, "destroy_handle q{}>", channel + 1),
            Action::Grant(way, grant) => write!(f, "grant {way} {}", word(&GRANTS, *grant)),
            Action::Revoke(way) => write!(f, "revoke {way}"),
            Action::FreeWindow(way) => write!(f, "free_window {way}"),
            Action::Connect { channel, anew } => {
                write!(f, "connect q{}> {}", channel + 1, if *anew { "anew" } else { "again" })
            }
        }
    }
}

impl fmt::Display for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        writeln!(f, "{}", self.hosts)?;
        for (i, channel) in self.channels.iter().enumerate() {
            writeln!(f, "q{} {channel}", i + 1)?;
        }
        for rule in &self.weather {
            writeln!(f, "{rule}")?;
        }
        for Timed { at, action } in &self.actions {
            writeln!(f, "at {} {action}", Time(*at))?;
        }
        for (name, count) in &self.expected {
            writeln!(f, "expect {count} {name}")?;
        }
        Ok(())
    }
}

/// The words of a line, one by one.
struct Words<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

type Parsed<T> = Result<T, String>;

impl<'a> Words<'a> {
    fn next(&mut self, what: &str) -> Parsed<&'a str> {
        self.words.next().ok_or_else(|| format!("the line ends where {what} should stand"))
    }

    fn number<T: std::str::FromStr>(&mut self, what: &str) -> Parsed<T> {
        number(self.next(what)?, what)
    }

    fn host(&mut self) -> Parsed<usize> {
        host(self.next("a host")?)
    }

    fn time(&mut self) -> Parsed<Nanos> {
        time(self.next("a time")?)
    }

    fn way(&mut self) -> Parsed<Way> {
        way(self.next("a way like q1> or q1<")?)
    }

    fn place(&mut self) -> Parsed<Place> {
        let text = self.next("an end like q1.a")?;
        let wrong = || format!("`{text}` is no end of a channel: q1.a is");
        let (channel, end) = text.split_once('.').ok_or_else(wrong)?;
        let end = end.bytes().next().and_then(|b| b.checked_sub(b'a')).ok_or_else(wrong)?;
        Ok(Place { channel: numbered(channel, 'q')?, end: end.into() })
    }
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Parsed<T> {
    text.parse().map_err(|_| format!("`{text}` is no number for {what}"))
}

/// The index behind `h1` or `q1`.
fn numbered(text: &str, letter: char) -> Parsed<usize> {
    let digits = text.strip_prefix(letter).and_then(|digits| digits.parse::<usize>().ok());
    digits.and_then(|n| n.checked_sub(1)).ok_or_else(|| format!("`{text}` is not like {letter}1"))
}

fn host(text: &str) -> Parsed<usize> {
    numbered(text, 'h')
}

fn way(text: &str) -> Parsed<Way> {
    let back = text.ends_with('<');
    let channel =
        text.strip_suffix(['<', '>']).ok_or_else(|| format!("`{text}` is no way: q1> and q1< are"))?;
    Ok(Way { channel: numbered(channel, 'q')?, back })
}

fn time(text: &str) -> Parsed<Nanos> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let scale = match &text[digits..] {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        _ => return Err(format!("`{text}` is no time: 5ns, 5us and 5ms are")),
    };
    Ok(Nanos(number::<u64>(&text[..digits], "a time")? * scale))
}

fn trouble(text: &str) -> Parsed<Trouble> {
    match text.split_once('=') {
        Some(("delay", late)) => Ok(Trouble::Delay(time(late)?)),
        None if text == "lose" => Ok(Trouble::Lose),
        None if text == "double" => Ok(Trouble::Double),
        None if text == "harm" => Ok(Trouble::Harm),
        _ => Err(format!("`{text}` is none of lose, double, harm, delay=5us")),
    }
}

fn parse_hosts(words: &mut Words<'_>) -> Parsed<Hosts> {
    let mut hosts = Hosts { count: words.number("how many hosts")?, ..Hosts::default() };
    for word in words.words.by_ref() {
        match word.split_once('=') {
            Some(("link", n)) => hosts.link_mtu = number(n, "link")?,
            Some(("split", n)) => hosts.split = Some(number(n, "split")?),
            Some(("window", n)) => hosts.window = number(n, "window")?,
            Some(("coalesce", n)) => hosts.ack_coalesce = number(n, "coalesce")?,
            Some(("slots", n)) => hosts.slots = number(n, "slots")?,
            None if word == "ipv6" => hosts.ipv6 = true,
            _ => return Err(format!("`{word}` is nothing that hosts have")),
        }
    }
    Ok(hosts)
}

fn parse_channel(words: &mut Words<'_>) -> Parsed<Channel> {
    let service = meaning(&SERVICES, words.next("a service")?)?;
    let mut channel = Channel { service, ends: Vec::new(), ..Channel::default() };
    while let Some(word) = words.words.next_if(|word| word.starts_with('h')) {
        channel.ends.push(host(word)?);
    }
    for word in words.words.by_ref() {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        match name {
            "psn" => {
                let (a, b) = value.split_once(',').ok_or("psn=0,0 names the first of a and of b")?;
                channel.psns = [number(a, "psn")?, number(b, "psn")?];
            }
            "mtu" => {
                let bytes = number(value, "mtu")?;
                channel.mtu = Mtu::from_bytes(bytes).ok_or_else(|| format!("{bytes} is no path MTU"))?;
            }
            "rd" => channel.rd_atomic = number(value, name)?,
            "depth" => channel.depth = number(value, name)?,
            "ahead" => channel.ahead = number(value, name)?,
            "dawdles" => channel.dawdles = number(value, name)?,
            "timeout" => channel.timeout = number(value, name)?,
            "retries" => channel.retries = number(value, name)?,
            "rnr_retries" => channel.rnr_retries = number(value, name)?,
            "rnr_timer" => channel.rnr_timer = number(value, name)?,
            "cq" => channel.cq = number(value, name)?,
            "sig_all" => channel.sig_all = true,
            "slow" => channel.slow = time(value)?,
            _ => return Err(format!("`{word}` is nothing that a channel has")),
        }
    }
    Ok(channel)
}

fn parse_op(opcode: WrOpcode, words: &mut Words<'_>) -> Parsed<Op> {
    let mut op = Op::new(opcode, words.number("a length")?);
    for word in words.words.by_ref() {
        match word.split_once('=') {
            Some(("pieces", n)) => op.pieces = number(n, "pieces")?,
            Some(("imm", n)) => op.imm = number(n, "imm")?,
            None if word == "inline" => op.inline = true,
            None if word == "unsignaled" => op.unsignaled = true,
            None if word == "fence" => op.fence = true,
            None if word == "solicited" => op.solicited = true,
            None if word == "odd" => op.odd = true,
            None if word == "granted" => op.granted = true,
            _ => return Err(format!("`{word}` is nothing that a work request has")),
        }
    }
    Ok(op)
}

fn parse_frame(words: &mut Words<'_>) -> Parsed<FrameName> {
    let (way, to) = (words.way()?, words.host()?);
    let name = words.next("an opcode")?;
    let row = Opcode::all().find(|row| row.name == name);
    let opcode = row.ok_or_else(|| format!("`{name}` is no opcode: RC_SEND_ONLY is"))?.opcode;
    let psn = words.number("a PSN")?;
    let mut frame = FrameName { way, to, opcode, psn, earlier: 0, life: 0 };
    for word in words.words.by_ref() {
        match word.split_once('=') {
            Some(("earlier", n)) => frame.earlier = number(n, "earlier")?,
            Some(("life", n)) => frame.life = number(n, "life")?,
            _ => return Err(format!("`{word}` is nothing that a frame has")),
        }
    }
    Ok(frame)
}

fn parse_action(words: &mut Words<'_>) -> Parsed<Action> {
    let name = words.next("an action")?;
    if name.starts_with('q') {
        let way = way(name)?;
        let opcode = meaning(&OPCODES, words.next("an operation")?)?;
        return Ok(Action::Post(way, parse_op(opcode, words)?));
    }
    Ok(match name {
        "restart" => Action::Restart(words.host()?),
        "link_mtu" => Action::LinkMtu(words.host()?, words.number("an MTU")?),
        "move" => Action::Move(words.host()?, words.time()?),
        "readdress" => Action::Readdress(words.host()?),
        "down" => Action::PortDown(words.host()?),
        "up" => Action::PortUp(words.host()?),
        "jump" => Action::Jump(words.time()?),
        "reset" => Action::Reset(words.place()?),
        "destroy" => Action::Destroy(words.place()?),
        "error" => Action::Error(words.place()?),
        "drain" => Action::Drain(words.place()?),
        "resume" => Action::Resume(words.place()?),
        "sleep" => Action::Sleep(words.place()?, words.time()?),
        "deregister" => Action::Deregister(words.way()?, meaning(&PARTS, words.next("a region")?)?),
        "destroy_handle" => Action::DestroyHandle(words.way()?.channel),
        "grant" => Action::Grant(words.way()?, meaning(&GRANTS, words.next("a kind of grant")?)?),
        "revoke" => Action::Revoke(words.way()?),
        "free_window" => Action::FreeWindow(words.way()?),
        "connect" => Action::Connect {
            channel: words.way()?.channel,
            anew: meaning(&[("anew", true), ("again", false)], words.next("anew or again")?)?,
        },
        _ => return Err(format!("`{name}` is no action")),
    })
}

impl Script {
    /// Reads the text form.
    ///
    /// # Errors
    /// Names the line and what would be right.
    pub fn parse(text: &str) -> Result<Script, String> {
        let mut script = Script {
            seed: 0,
            hosts: Hosts::default(),
            channels: Vec::new(),
            weather: Vec::new(),
            actions: Vec::new(),
            expected: Vec::new(),
        };
        for (i, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if !line.is_empty() {
                let read = script.read_line(line).map_err(|why| format!("line {}: {why}", i + 1));
                read?;
            }
        }
        script.actions.sort_by_key(|timed| timed.at);
        script.check()?;
        Ok(script)
    }

    fn read_line(&mut self, line: &str) -> Parsed<()> {
        let mut words = Words { words: line.split_whitespace().peekable() };
        match words.next("a word")? {
            "seed" => self.seed = words.number("the seed")?,
            "hosts" => self.hosts = parse_hosts(&mut words)?,
            "weather" => {
                let to = words.host()?;
                let trouble = trouble(words.next("a trouble")?)?;
                self.weather.push(Rule::Rate { to, trouble, of_10_000: words.number("a rate")? });
            }
            "at" => {
                let at = words.time()?;
                self.actions.push(Timed { at, action: parse_action(&mut words)? });
            }
            "expect" => {
                let count = words.number("how often")?;
                let name: Vec<&str> = words.words.by_ref().collect();
                self.expected.push((name.join(" "), count));
            }
            name if name.starts_with('q') => {
                let number = numbered(name, 'q')?;
                if number != self.channels.len() {
                    return Err(format!("q{} comes next", self.channels.len() + 1));
                }
                self.channels.push(parse_channel(&mut words)?);
            }
            name => {
                let trouble = trouble(name)?;
                self.weather.push(Rule::Strike { frame: parse_frame(&mut words)?, trouble });
            }
        }
        words.words.next().map_or(Ok(()), |word| Err(format!("nothing may follow at `{word}`")))
    }

    /// Every name means something.
    fn check(&self) -> Parsed<()> {
        for (i, channel) in self.channels.iter().enumerate() {
            let ends = if channel.service == Service::Group { 2..=8 } else { 2..=2 };
            if !ends.contains(&channel.ends.len()) {
                return Err(format!("q{} has {} ends", i + 1, channel.ends.len()));
            }
            if let Some(host) = channel.ends.iter().find(|host| **host >= self.hosts.count) {
                return Err(format!("q{}: there is no h{}", i + 1, host + 1));
            }
        }
        Ok(())
    }
}
