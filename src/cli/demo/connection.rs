//! Two connected QPs, and the measurements on them.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use roxie::host::{
    AckRequestPolicy, CompletionQueue, ConnectOptions, Device, DeviceConfig, MemoryRegion, QueuePair, Stack,
};
use roxie::verbs::{Access, QpCaps, SendFlags, SendWr, Wc, WcStatus, WrOpcode};

use super::Failure;
use super::site::Link;
use crate::floor::Threads;

/// Bytes of registered memory at each end: all that the bandwidth measurement has outstanding.
pub(super) const REGION: usize = 4 << 20;
/// Bytes of a message of the bandwidth measurement.
///
/// A FIRST packet is longer than a MIDDLE by its RETH, so it starts a new segmentation train. Short messages would
/// measure short trains.
const MESSAGE: u32 = 1 << 20;
/// Messages outstanding; together they fill the region.
const MESSAGES: u64 = 4;
/// Bytes of a message of the rate measurement.
pub(super) const SMALL: usize = 64;
/// Small messages outstanding.
const SMALL_MESSAGES: u64 = 256;
/// Receives posted for them: more than are outstanding, so that one is always free.
const RECEIVES: u64 = 512;
/// Every 32nd small message is signaled.
const SIGNAL_EVERY: u64 = 32;
/// A measurement that runs this much over its time is stuck.
const PATIENCE: Duration = Duration::from_secs(10);

/// One end of a connection.
pub(super) struct End {
    pub(super) qp: QueuePair,
    pub(super) sends: CompletionQueue,
    pub(super) receives: CompletionQueue,
    pub(super) memory: MemoryRegion,
    pub(super) device: Device,
    /// Receives posted for small messages so far, and how many of them were filled.
    small_posted: AtomicU64,
    small_filled: AtomicU64,
}

/// Two connected QPs on two devices.
pub(super) struct Connection {
    pub(super) near: End,
    pub(super) far: End,
    threads: Threads,
}

impl Connection {
    /// Opens a device at each end of a link and connects a QP of each. `timeout` is the local ACK timeout code.
    pub(super) fn open(
        link: &Link,
        stacks: [&Stack; 2],
        timeout: u8,
        threads: Threads,
    ) -> Result<Connection, Failure> {
        let config = DeviceConfig { ack_requests: AckRequestPolicy::Late, ..DeviceConfig::caller_only() };
        let [near, far] = link.devices(stacks, &config)?;
        let (near, far) = (End::new(near)?, End::new(far)?);
        let (here, there) = (near.qp.endpoint(0)?, far.qp.endpoint(0)?);
        let options = ConnectOptions { timeout, ..ConnectOptions::default() };
        near.qp.connect(&here, &there, &options)?;
        far.qp.connect(&there, &here, &options)?;
        Ok(Connection { near, far, threads })
    }

    /// Returns the payload bytes of a full packet.
    pub(super) fn path_mtu(&self) -> usize {
        self.near.device.largest_mtu().bytes()
    }

    /// Returns a counter's sum over both devices.
    pub(super) fn counter(&self, name: &str) -> u64 {
        self.near.device.counter(name) + self.far.device.counter(name)
    }

    /// Polls both devices until a completion comes. Fails if the completion is an error.
    pub(super) fn wait(&self, queue: &CompletionQueue, what: &str) -> Result<Wc, Failure> {
        let start = Instant::now();
        loop {
            if let Some(wc) = queue.poll_one() {
                return successful(&wc, what).map(|()| wc);
            }
            self.near.device.poll();
            self.far.device.poll();
            if start.elapsed() > PATIENCE {
                return Err(Failure::Stalled { what: what.into(), seconds: PATIENCE.as_secs() });
            }
        }
    }

    /// Returns the bytes a second that RDMA WRITEs carry and the peer acknowledges, and the number of bytes at the
    /// start of the regions that were written.
    pub(super) fn write_bandwidth(&self, time: Duration) -> Result<(f64, usize), Failure> {
        let (near, far) = (&self.near, &self.far);
        let (mut posted, mut done, mut in_time) = (0, 0, None);
        let start = Instant::now();
        let mut near_step = || {
            let elapsed = start.elapsed();
            // Measure at least one message, however short the time.
            if elapsed >= time && done > 0 {
                let rate = *in_time.get_or_insert(done as f64 * f64::from(MESSAGE) / elapsed.as_secs_f64());
                if done == posted {
                    return Ok(Some((rate, posted.min(MESSAGES) as usize * MESSAGE as usize)));
                }
            } else {
                while posted - done < MESSAGES {
                    near.write(far, posted % MESSAGES * u64::from(MESSAGE), MESSAGE)?;
                    posted += 1;
                }
            }
            done += near.completed("WRITE")?;
            overdue(elapsed, time, "the bandwidth measurement").map(|()| None)
        };
        self.threads.drive(
            || step(near_step()),
            || {
                far.device.poll();
            },
        )
    }

    /// Returns the 64-byte SENDs a second that arrive.
    pub(super) fn send_rate(&self, time: Duration) -> Result<f64, Failure> {
        let (near, far) = (&self.near, &self.far);
        let payload = [0x5a; SMALL];
        far.post_small_receives()?;
        let before = far.small_filled.load(Relaxed);
        let mut trouble = None;
        let (mut posted, mut done, mut in_time) = (0, 0, None);
        let start = Instant::now();
        let mut near_step = || {
            let elapsed = start.elapsed();
            let stopping = elapsed >= time;
            if stopping {
                let so_far = far.small_filled.load(Relaxed) - before;
                let rate = *in_time.get_or_insert(so_far as f64 / elapsed.as_secs_f64());
                if so_far == posted && done == posted {
                    return Ok(Some(rate));
                }
            }
            // The last message is signaled too, so that none stays outstanding.
            while posted - done < SMALL_MESSAGES && (!stopping || posted % SIGNAL_EVERY != 0) {
                posted += 1;
                let signaled =
                    if posted % SIGNAL_EVERY == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
                let wr = SendWr { flags: signaled | SendFlags::INLINE, ..SendWr::default() };
                near.qp.post_send_inline(&wr, &payload)?;
            }
            done += near.completed("SEND")? * SIGNAL_EVERY;
            overdue(elapsed, time, "the message rate measurement").map(|()| None)
        };
        let far_step = || -> Result<(), Failure> {
            let n = take(&far.receives, "receive")?;
            far.small_filled.fetch_add(n, Relaxed);
            far.post_small_receives()
        };
        let rate = self.threads.drive(
            || step(near_step()),
            || {
                if trouble.is_none() {
                    trouble = far_step().err();
                }
            },
        );
        trouble.map_or(rate, Err)
    }

    /// Records the round trips of 8-byte WRITEs in nanoseconds. The peer answers each with a WRITE as soon as the bytes
    /// are in its memory.
    pub(super) fn round_trips(&self, time: Duration, mut record: impl FnMut(u64)) -> Result<(), Failure> {
        let (near, far) = (&self.near, &self.far);
        let (mut trouble, mut answered) = (None, 0);
        near.store(0)?;
        far.store(0)?;
        let (mut sequence, mut sent_at): (u64, Option<Instant>) = (0, None);
        let start = Instant::now();
        let mut near_step = || {
            let elapsed = start.elapsed();
            match sent_at {
                None if elapsed >= time && sequence > 0 && sequence % SIGNAL_EVERY == 0 => {
                    return Ok(Some(()));
                }
                None => {
                    sequence += 1;
                    sent_at = Some(Instant::now());
                    near.write_number(far, sequence)?;
                }
                Some(_) => {}
            }
            near.completed("WRITE")?;
            if let Some(at) = sent_at
                && near.load()? == sequence
            {
                record(at.elapsed().as_nanos() as u64);
                sent_at = None;
            }
            overdue(elapsed, time, "the latency measurement").map(|()| None)
        };
        let mut far_step = || -> Result<(), Failure> {
            far.completed("WRITE")?;
            let number = far.load()?;
            if number != answered {
                answered = number;
                far.write_number(near, number)?;
                far.device.poll();
            }
            Ok(())
        };
        let result = self.threads.drive(
            || step(near_step()),
            || {
                if trouble.is_none() {
                    trouble = far_step().err();
                }
            },
        );
        trouble.map_or(result, Err)?;
        self.settle()
    }

    /// Polls both devices until nothing has moved for a while.
    fn settle(&self) -> Result<(), Failure> {
        let mut quiet = 0;
        while quiet < 100 {
            let moved = self.near.device.poll() | self.far.device.poll();
            quiet = if moved { 0 } else { quiet + 1 };
            self.near.completed("WRITE")?;
            self.far.completed("WRITE")?;
        }
        Ok(())
    }
}

/// Converts a step's result to what the driver of both ends takes.
fn step<T>(result: Result<Option<T>, Failure>) -> ControlFlow<Result<T, Failure>> {
    match result {
        Ok(None) => ControlFlow::Continue(()),
        Ok(Some(value)) => ControlFlow::Break(Ok(value)),
        Err(failure) => ControlFlow::Break(Err(failure)),
    }
}

fn overdue(elapsed: Duration, time: Duration, what: &str) -> Result<(), Failure> {
    if elapsed > time + PATIENCE {
        return Err(Failure::Stalled { what: what.into(), seconds: PATIENCE.as_secs() });
    }
    Ok(())
}

fn successful(wc: &Wc, what: &str) -> Result<(), Failure> {
    if wc.status != WcStatus::Success {
        return Err(Failure::Completion { what: what.into(), status: wc.status, syndrome: wc.vendor_err });
    }
    Ok(())
}

impl End {
    fn new(device: Device) -> Result<End, Failure> {
        let pd = device.alloc_pd()?;
        let (sends, receives) = (device.create_cq(1024, None)?, device.create_cq(1024, None)?);
        let caps = QpCaps {
            max_send_wr: 2 * SMALL_MESSAGES as u32,
            max_recv_wr: 2 * RECEIVES as u32,
            max_inline: SMALL as u32,
            ..QpCaps::default()
        };
        let qp = pd.queue_pair(&sends).recv_cq(&receives).caps(caps).create()?;
        let all = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let memory = pd.register(REGION, all)?;
        Ok(End {
            qp,
            sends,
            receives,
            memory,
            device,
            small_posted: AtomicU64::new(0),
            small_filled: AtomicU64::new(0),
        })
    }

    /// Posts a signaled WRITE of `length` bytes at `offset` to the same offset of the peer's region.
    pub(super) fn write(&self, to: &End, offset: u64, length: u32) -> Result<(), Failure> {
        let wr = SendWr {
            opcode: WrOpcode::Write,
            remote_addr: to.memory.address() + offset,
            rkey: to.memory.rkey(),
            ..SendWr::default()
        };
        Ok(self.qp.post_send(&wr, &[self.memory.sge(offset as usize, length)])?)
    }

    /// Returns the number of sends that completed since the last call. Polls the device if there are none.
    fn completed(&self, what: &str) -> Result<u64, Failure> {
        take(&self.sends, what)
    }

    /// Posts receives until `RECEIVES` are free.
    fn post_small_receives(&self) -> Result<(), Failure> {
        let filled = self.small_filled.load(Relaxed);
        for i in self.small_posted.load(Relaxed)..filled + RECEIVES {
            let offset = (i % RECEIVES) as usize * SMALL;
            self.qp.post_recv(i, &[self.memory.sge(offset, SMALL as u32)])?;
        }
        self.small_posted.store(filled + RECEIVES, Relaxed);
        Ok(())
    }

    /// WRITEs a number to the address that the peer polls.
    fn write_number(&self, to: &End, number: u64) -> Result<(), Failure> {
        let signaled =
            if number.is_multiple_of(SIGNAL_EVERY) { SendFlags::SIGNALED } else { SendFlags::empty() };
        let wr = SendWr {
            opcode: WrOpcode::Write,
            flags: signaled | SendFlags::INLINE,
            remote_addr: to.memory.address(),
            rkey: to.memory.rkey(),
            ..SendWr::default()
        };
        Ok(self.qp.post_send_inline(&wr, &number.to_ne_bytes())?)
    }

    fn load(&self) -> Result<u64, Failure> {
        let mut bytes = [0; 8];
        self.memory.read_at(0, &mut bytes)?;
        Ok(u64::from_ne_bytes(bytes))
    }

    fn store(&self, number: u64) -> Result<(), Failure> {
        Ok(self.memory.write_at(0, &number.to_ne_bytes())?)
    }
}

fn take(queue: &CompletionQueue, what: &str) -> Result<u64, Failure> {
    let mut wcs = [Wc::default(); 64];
    let n = queue.poll(&mut wcs);
    wcs[..n].iter().try_for_each(|wc| successful(wc, what))?;
    Ok(n as u64)
}
