//! Memory beside a region: the agent keeps bytes in front of and behind it, which belong to no region and which no
//! packet may change.

use crate::bench::{Bench, Region};
use crate::verdict::{Script, Stop};

impl Bench {
    /// Registers memory with `margin` bytes in front of it and as many behind it that are not registered.
    ///
    /// # Errors
    /// If the agent refuses.
    pub(crate) fn register_with_margin(
        &mut self,
        size: usize,
        margin: usize,
        access: &str,
        pd: u8,
    ) -> Script<Region> {
        self.register_by(&format!("mr size={size} margin={margin} access={access} pd={pd}"))
    }

    /// Returns the place of the first byte of the margin that was changed, counted from the region's first byte:
    /// negative in front of it.
    ///
    /// # Errors
    /// If the agent refuses.
    pub(crate) fn margin_changed(&mut self, region: Region) -> Script<Option<i64>> {
        let answer = self.agent.ask(&format!("margin mr={}", region.id))?;
        if answer.number("changed")? == 0 {
            return Ok(None);
        }
        let at = answer.word("at")?;
        at.parse().map(Some).map_err(|_| Stop::NotTested(format!("the agent's answer has at={at}")))
    }

    /// Makes the margin of a region as it was.
    ///
    /// # Errors
    /// If the agent refuses.
    pub(crate) fn repair_margin(&mut self, region: Region) -> Script {
        self.agent.ask(&format!("margin mr={} repair=1", region.id)).map(drop)
    }

    /// Fills the first bytes of a region with a pattern: each byte is one more than the one before, modulo 251.
    ///
    /// # Errors
    /// If the agent refuses.
    pub(crate) fn fill(&mut self, region: Region, length: u64, seed: u64) -> Script {
        self.agent.ask(&format!("fill mr={} off=0 len={length} seed={seed}", region.id)).map(drop)
    }
}
