//! Parses the text form of scripts, which [`crate::text`] writes.

use roxie::time::Nanos;
use roxie::verbs::{Mtu, RateLimit, WrOpcode};
use roxie::wire::Opcode;

use crate::script::{
    Action, Brakes, Channel, FrameName, Held, Hosts, Op, Place, Rule, Script, Service, Srq, SrqPlace, Timed,
    Trouble, Way,
};
use crate::text::{GRANTS, INTRUSIONS, KINDS, OPCODES, PARTS, SERVICES};

fn meaning<T: Copy>(table: &[(&'static str, T)], word: &str) -> Result<T, String> {
    let value = table.iter().find(|(w, _)| *w == word).map(|(_, v)| *v);
    let words = || table.iter().map(|(w, _)| *w).collect::<Vec<_>>().join(", ");
    value.ok_or_else(|| format!("`{word}` is none of {}", words()))
}

/// Iterates over the words of a line.
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

    fn srq(&mut self) -> Parsed<SrqPlace> {
        let srq = numbered(self.next("a shared receive queue")?, 's')?;
        Ok(SrqPlace { srq, host: self.host()? })
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

/// Parses a name such as `h1` or `q1` into an index from 0.
fn numbered(text: &str, letter: char) -> Parsed<usize> {
    let digits = text.strip_prefix(letter).and_then(|digits| digits.parse::<usize>().ok());
    digits.and_then(|n| n.checked_sub(1)).ok_or_else(|| format!("`{text}` is not like {letter}1"))
}

fn is_numbered(text: &str, letter: char) -> bool {
    text.strip_prefix(letter).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
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
        None if text == "mark" => Ok(Trouble::Mark),
        _ => Err(format!("`{text}` is none of lose, double, harm, mark, delay=5us")),
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
            Some(("ask", when)) => hosts.ack_requests = when.parse().map_err(|e| format!("{e}"))?,
            None if word == "ipv6" => hosts.ipv6 = true,
            _ => return Err(format!("`{word}` is nothing that hosts have")),
        }
    }
    Ok(hosts)
}

fn parse_srq(words: &mut Words<'_>) -> Parsed<Srq> {
    let extended = meaning(&KINDS, words.next("basic or xrc")?)?;
    let mut srq = Srq { extended, ..Srq::default() };
    for word in words.words.by_ref() {
        match word.split_once('=') {
            Some(("size", n)) => srq.size = number(n, "size")?,
            Some(("ahead", n)) => srq.ahead = number(n, "ahead")?,
            Some(("dawdles", n)) => srq.dawdles = number(n, "dawdles")?,
            _ => return Err(format!("`{word}` is nothing that a shared receive queue has")),
        }
    }
    Ok(srq)
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
            "sl" => channel.sl = number(value, name)?,
            "sig_all" => channel.sig_all = true,
            "selective" => channel.selective = true,
            "slow" => channel.slow = time(value)?,
            "events" => {
                let (count, period) = value.split_once(',').ok_or("events=1,0us tells of each completion")?;
                channel.events = Some(Held { count: number(count, name)?, period: time(period)? });
            }
            "srq" => {
                channel.srqs = value.split(',').map(|name| numbered(name, 's')).collect::<Parsed<_>>()?
            }
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
            Some(("queue", n)) => op.queue = number(n, "queue")?,
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

fn parse_brakes(words: &mut Words<'_>) -> Parsed<Brakes> {
    let mut brakes = Brakes::default();
    for word in words.words.by_ref() {
        match word.split_once(':') {
            Some(("cc", text)) => brakes.control = text.into(),
            Some(("ecn", text)) => brakes.ecn = text.into(),
            Some(("qos", text)) => brakes.classes = text.into(),
            Some(("mbps", n)) => brakes.mbps = number(n, "mbps")?,
            _ => return Err(format!("`{word}` is no setting of brakes: cc:, ecn:, qos: and mbps: are")),
        }
    }
    brakes.config().map(|_| brakes)
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
        "moderate" => {
            let (place, count) = (words.place()?, words.number("how many completions")?);
            Action::Moderate(place, Held { count, period: words.time()? })
        }
        "arm" => Action::Arm(words.srq()?, words.number("a limit")?),
        "resize_srq" => Action::ResizeSrq(words.srq()?, words.number("a size")?),
        "destroy_srq" => Action::DestroySrq(words.srq()?),
        "brake" => Action::Brake(words.host()?, parse_brakes(words)?),
        "limit" => {
            let (place, kbps) = (words.place()?, words.number("kb/s")?);
            let (max_burst, typical_packet) = (words.number("a burst")?, words.number("a packet")?);
            Action::Limit(place, RateLimit { kbps, max_burst, typical_packet })
        }
        "intrude" => {
            let (place, what) = (words.place()?, meaning(&INTRUSIONS, words.next("what a stranger sends")?)?);
            Action::Intrude(place, what, words.number("a number")?)
        }
        "connect" => Action::Connect {
            channel: words.way()?.channel,
            again: meaning(&[("anew", true), ("again", false)], words.next("anew or again")?)?,
        },
        _ => return Err(format!("`{name}` is no action")),
    })
}

impl Script {
    /// Parses the text form.
    ///
    /// # Errors
    /// Names the line and what is allowed.
    pub fn parse(text: &str) -> Result<Script, String> {
        let mut script = Script {
            seed: 0,
            hosts: Hosts::default(),
            srqs: Vec::new(),
            channels: Vec::new(),
            weather: Vec::new(),
            actions: Vec::new(),
            expected: Vec::new(),
            logs: Vec::new(),
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
            "log" => {
                let place = words.place()?;
                let text: Vec<&str> = words.words.by_ref().collect();
                self.logs.push((place, text.join(" ")));
            }
            name if is_numbered(name, 's') => {
                if numbered(name, 's')? != self.srqs.len() {
                    return Err(format!("s{} comes next", self.srqs.len() + 1));
                }
                self.srqs.push(parse_srq(&mut words)?);
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

    /// Checks that all names refer to something.
    fn check(&self) -> Parsed<()> {
        for (i, channel) in self.channels.iter().enumerate() {
            let ends = if channel.service == Service::Group { 2..=8 } else { 2..=2 };
            if !ends.contains(&channel.ends.len()) {
                return Err(format!("q{} has {} ends", i + 1, channel.ends.len()));
            }
            if let Some(host) = channel.ends.iter().find(|host| **host >= self.hosts.count) {
                return Err(format!("q{}: there is no h{}", i + 1, host + 1));
            }
            self.check_srqs(i, channel)?;
        }
        Ok(())
    }
    fn check_srqs(&self, i: usize, channel: &Channel) -> Parsed<()> {
        let extended = channel.service == Service::Xrc;
        let counts = if extended { 1..=8 } else { 0..=1 };
        if !counts.contains(&channel.srqs.len()) {
            return Err(format!("q{} takes from {} shared receive queues", i + 1, channel.srqs.len()));
        }
        match channel.srqs.iter().find(|srq| self.srqs.get(**srq).is_none_or(|s| s.extended != extended)) {
            Some(srq) => Err(format!("q{}: there is no s{} of its kind", i + 1, srq + 1)),
            None => Ok(()),
        }
    }
}
