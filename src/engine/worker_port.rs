//! The worker's port: changes of the link, captures, another port.

use std::any::Any;
use std::io;

use super::worker::{Live, Worker, longest_frame};
use roxie_base::time::Nanos;
use roxie_nic::verbs::{AddressVector, Mtu};
use roxie_port::pcap::{Background, PcapPort};
use roxie_port::unclaimed::UnclaimedPort;
use roxie_port::{LinkChange, Port};

impl Worker {
    /// Sets the MAC address of the next hop of some paths. Returns the number of QPs and address handles that change.
    pub fn set_next_hop(&mut self, goes_there: impl Fn(&AddressVector) -> bool, mac: [u8; 6]) -> u32 {
        self.nic.set_next_hop(goes_there, mac)
    }

    /// Follows a change of the link. QPs with packets that no longer fit enter the error state; returns their number.
    ///
    /// # Errors
    /// If the port could not follow; it then continues unchanged.
    pub fn follow(&mut self, now: Nanos, change: &LinkChange) -> io::Result<u32> {
        let now = self.advance(now);
        self.port.follow(change)?;
        match change {
            LinkChange::Addresses(_) => Ok(0),
            LinkChange::Mac(_) => {
                self.nic.set_station(self.port.info().mac);
                Ok(0)
            }
            LinkChange::Mtu(_) => {
                self.nic.set_longest_frame(longest_frame(self.port.info()));
                let largest = Mtu::largest_for_link(self.port.info().largest_packet());
                let failed = self.nic.set_largest_mtu(now, largest);
                self.nic.update_changed(now);
                self.nic.publish(now);
                self.raise_events();
                Ok(failed)
            }
        }
    }

    /// Sends PFC frames that pause or resume the neighbour, according to the fill level of the receive ring.
    #[cold]
    pub(super) fn pause_neighbour(&mut self, now: Nanos) {
        let Some(ring) = self.port.rx_waiting() else { return };
        let (longest, mac) = (self.port.info().max_frame, self.port.info().mac);
        let Some(control) = self.nic.neighbour_should(now, ring, longest) else { return };
        let frame = control.build(mac);
        // If there is no room, the next pass sends it.
        let Some(id) = self.port.tx_alloc(frame.len()) else { return };
        self.port.tx_frame(&id).write(0, &frame);
        self.port.set_now(now);
        self.port.tx_commit(id);
        self.flush(now);
        self.nic.pause_sent(now, control);
    }

    /// Captures frames from now on. Returns the recorder if frames are captured already.
    pub(super) fn attach_capture(&mut self, now: Nanos, mut recorder: Live) -> Option<Live> {
        if self.is_captured {
            return Some(recorder);
        }
        recorder.set_now(now);
        let below = self.take_port();
        self.port = Box::new(PcapPort::with_recorder(below, recorder));
        self.is_captured = true;
        None
    }

    /// Ends the capture, and returns its recorder. The port below is as it was.
    pub(super) fn detach_capture(&mut self) -> Option<Live> {
        if !std::mem::take(&mut self.is_captured) {
            return None;
        }
        let layer: Box<dyn Any> = self.take_port();
        let layer = layer.downcast::<PcapPort<Box<dyn Port>, Background>>().expect("attached here");
        let (below, recorder) = layer.into_parts();
        self.port = below;
        Some(recorder)
    }

    /// Takes the port, and leaves a placeholder with its properties.
    fn take_port(&mut self) -> Box<dyn Port> {
        let placeholder = UnclaimedPort::new(self.port.info().clone());
        std::mem::replace(&mut self.port, Box::new(placeholder))
    }

    /// Replaces the port. Between two passes no slot of the old one is held. A capture continues on the new one.
    pub(super) fn set_port(&mut self, now: Nanos, port: Box<dyn Port>) {
        let capture = self.detach_capture();
        self.port = port;
        if let Some(capture) = capture {
            self.attach_capture(now, capture);
        }
        let info = self.port.info();
        let (mac, largest) = (info.mac, Mtu::largest_for_link(info.largest_packet()));
        self.nic.set_longest_frame(longest_frame(self.port.info()));
        self.nic.set_station(mac);
        self.nic.set_largest_mtu(now, largest);
        if let Err(error) = self.port_requests.repeat(&self.nic, &mut *self.port) {
            self.link_error.get_or_insert_with(|| error.to_string());
        }
    }
}
